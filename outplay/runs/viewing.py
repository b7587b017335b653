"""A run that is watched: its checkpoints play evaluation episodes, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from outplay.algorithms import Algorithm
from outplay.collect.viewing import EpisodeViewer
from outplay.collect.viewing import Moment as Moment  # the dashboard imports it from here
from outplay.errors import CheckpointError
from outplay.runs.folder import RunFolder
from outplay.runs.playing import SavedPolicy

T = TypeVar("T")

_ATTEMPTS = 5  # a run may replace its newest checkpoint while it is read


class Viewer:
    """Plays the policy of a run's checkpoint as `outplay evaluate` does, in an environment of its own.

    >>> viewer = Viewer(RunFolder("~/outplay_results/poles/PPO_CartPole-v1_3fa9c1_2026-11-15_12-00-00"))
    >>> for moment in viewer.episode(seed=0, number=0):
    ...     print(moment.step, moment.action, moment.reward)
    """

    def __init__(self, run: RunFolder, checkpoint: str | None = None, trust: bool = False) -> None:
        """`checkpoint`: its name, default the newest one. `trust`: import what the checkpoint names."""
        self._run = run
        remedy = "start the dashboard with --trust"

        def load(folder: Path) -> tuple[SavedPolicy, Algorithm]:
            saved = SavedPolicy.at(folder, trust=trust, remedy=remedy)
            return saved, saved.load({"num_workers": 0})

        saved, self._algorithm = self._using(checkpoint, load)
        try:
            self.checkpoint = saved.folder.name
            env = self._algorithm.evaluation_env
            self.algorithm, self.env, self.seed = saved.state["algorithm"], env.spec.name, self._algorithm.config.seed
            self.view = EpisodeViewer(env.spec, env.probe.renders)
            self._policy = self._algorithm.policy_spec.make()
            self._policy.load(self._algorithm.snapshot(everything=True))
        except BaseException:
            self._algorithm.stop()
            raise

    def newest(self) -> str | None:
        """The name of the newest checkpoint; None if there is none any more."""
        found = self._run.checkpoints()
        return found[-1].name if found else None

    def load(self, checkpoint: str | None = None) -> None:
        """Take the policy of another checkpoint of the run, default the newest one.

        Raises CheckpointError if it cannot be read; then the old policy stays.
        """

        def load(folder: Path) -> Path:
            state = SavedPolicy.state_of(folder)
            self._algorithm.load_weights(folder)
            self._algorithm.start_on(state)
            return folder

        folder = self._using(checkpoint, load)
        self._policy.load(self._algorithm.snapshot(everything=True))
        self.checkpoint = folder.name

    def episode(self, seed: int, number: int = 0, wants_picture: Callable[[], bool] = lambda: True) -> Iterator[Moment]:
        """Episode `number` of those that `outplay evaluate --seed SEED` plays one after the other."""
        longest, task = self._algorithm.longest_evaluation_episode, self._algorithm.evaluation_task
        return self.view.episode(self._policy, seed, number, longest, task, wants_picture)

    def close(self) -> None:
        """Close the environment."""
        self.view.close()
        self._algorithm.stop()

    def _using(self, checkpoint: str | None, use: Callable[[Path], T]) -> T:
        """`use(folder)` with a checkpoint of the run. The newest one may be replaced meanwhile: it is found again."""
        for attempt in range(_ATTEMPTS):
            found = {folder.name: folder for folder in self._run.checkpoints()}
            if not found:
                raise CheckpointError(f"the run {self._run.path.name} has no checkpoint yet")
            if checkpoint is not None and checkpoint not in found:
                raise CheckpointError(f"the run {self._run.path.name} has no {checkpoint} any more")
            folder = list(found.values())[-1] if checkpoint is None else found[checkpoint]
            try:
                return use(folder)
            except CheckpointError:
                if folder.exists() or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")
