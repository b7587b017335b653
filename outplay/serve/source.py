"""Where served policies come from: a run, whose newest checkpoint is served, or one checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outplay.runs.folder import RunFolder
from outplay.runs.playing import SavedPolicy
from outplay.runs.results import as_path, results_folder
from outplay.serve.decoding import Decoder, plain_action
from outplay.spaces import Leaves

if TYPE_CHECKING:
    from outplay import Algorithm

Array = np.ndarray
State = dict[str, Array]
Policy = Any  # outplay.policies.Policy, which is below what serving imports


@dataclass(frozen=True)
class ServedPolicy:
    """The policy of one checkpoint. Not thread-safe: a server calls it from one thread.

    >>> policy = load_policy("cartpole")
    >>> policy.act([[0.1, 0.0, 0.02, 0.0], [0.0, 0.0, 0.0, 0.0]])
    [1, 0]
    """

    policy: Policy
    algorithm: str
    env: str
    checkpoint: Path
    iteration: int
    timesteps: int
    rng: np.random.Generator = field(default_factory=np.random.default_rng, repr=False)

    @property
    def is_recurrent(self) -> bool:
        return bool(self.policy.initial_state(1))

    @property
    def uses_reward(self) -> bool:
        """Whether the network gets the reward of the last step."""
        return bool(self.policy.uses_previous_reward)

    def act(self, observations: Sequence[Any], masks: Sequence[Any] | None = None, explore: bool = False) -> list[Any]:
        """Actions for a batch of observations, each as the first of an episode. Values are checked.

        Observations and actions are as in JSON requests: nested lists (or arrays), dicts for Dict spaces.
        """
        if not observations:
            return []
        decoder = Decoder(self.policy)
        rows, mask = decoder.rows(observations, is_batch=True), decoder.mask(observations, masks)
        actions, _ = self.act_on_rows(rows, None, mask, explore)
        return [plain_action(self.policy.action_space, action) for action in actions]

    def check(self, observation: Any, mask: Any = None) -> None:
        """Raise EnvError if `act` would refuse this observation or mask: for programs that make batches themselves."""
        decoder = Decoder(self.policy)
        decoder.rows([observation], is_batch=False)
        decoder.mask([observation], None if mask is None else [mask])

    def act_on_rows(
        self, rows: Leaves, state: State | None, mask: Array | None, explore: bool, most: int | None = None
    ) -> tuple[Array, State]:
        """(actions in the environment's format, next state) for checked observations. No state: episodes start.

        The batch is padded to a power of two, at most `most` rows: few batch sizes occur, so their cost is known.
        """
        number = len(rows[0])
        state = self.policy.initial_state(number) if state is None else state
        size = padded_size(number, most)
        if size > number:
            index = np.minimum(np.arange(size), number - 1)
            rows = tuple(leaf[index] for leaf in rows)
            state = {name: array[index] for name, array in state.items()}
            mask = None if mask is None else mask[index]
        actions, state, _ = self.policy.act(rows, state, mask, explore, self.rng)
        in_env: Array = self.policy.to_env(actions)
        return in_env[:number], {name: array[:number] for name, array in state.items()}


def padded_size(number: int, most: int | None = None) -> int:
    """The next power of two.

    >>> padded_size(5), padded_size(33, most=48)
    (8, 48)
    """
    size = 1 << (number - 1).bit_length()
    return size if most is None else max(number, min(size, most))


class PolicySource:
    """A run or a checkpoint. `newest` loads the policy, and later the policies of the run's new checkpoints.

    >>> source = PolicySource.find("cartpole")
    >>> policy = source.newest()
    >>> source.newest() is None  # there is no new checkpoint
    True
    """

    def __init__(self, saved: SavedPolicy, run: RunFolder | None) -> None:
        self._saved = saved
        self.run = run  # None: a checkpoint, which does not change
        self._algorithm: Algorithm | None = None
        self._loaded: tuple[Path, int, int] | None = None  # which checkpoint was loaded last

    @classmethod
    def find(
        cls, path: str | Path, results: str | Path | None = None, env: Any = None, trust: bool = False
    ) -> PolicySource:
        """Find a run or checkpoint as `outplay evaluate` does. `trust`: import what the checkpoint names."""
        saved = SavedPolicy.find(path, results_folder(results), env=env, trust=trust)
        run = None
        if saved.folder.parent.name == "checkpoints" and (saved.folder.parent.parent / "config.yaml").exists():
            run = RunFolder(saved.folder.parent.parent)
        given = as_path(path)
        is_checkpoint = given.exists() and (given.samefile(saved.folder) or given.parent.samefile(saved.folder))
        return cls(saved, None if is_checkpoint else run)

    def newest(self) -> ServedPolicy | None:
        """The policy of the newest checkpoint; None if it is the one that was loaded last.

        Raises CheckpointError if it cannot be loaded. Then the next call tries again.
        """
        folder = self._saved.folder
        if self._algorithm is not None:
            found = [] if self.run is None else self.run.checkpoints()
            if not found or self._identity(found[-1]) in (None, self._loaded):
                return None
            folder = found[-1]
        loaded = self._identity(folder)
        state = self._load(folder)
        self._loaded = loaded
        assert self._algorithm is not None
        policy = self._algorithm.policy_spec.make()
        policy.load(self._algorithm.snapshot())
        return ServedPolicy(
            policy,
            self._saved.state["algorithm"],
            self._saved.state["env"],
            folder,
            state["training_iteration"],
            state["timesteps_total"],
        )

    def _load(self, folder: Path) -> dict[str, Any]:
        """Load the weights of a checkpoint into the algorithm. Returns its state.json."""
        if self._algorithm is None:
            self._algorithm = self._saved.load({"num_workers": 0})
            self._algorithm.stop()  # no environment is needed from here on
            return self._saved.state
        self._algorithm.load_weights(folder)
        return self._saved.state_of(folder)

    @staticmethod
    def _identity(folder: Path) -> tuple[Path, int, int] | None:
        """What changes when a checkpoint is written again; None if it was removed."""
        try:
            found = (folder / "manifest.json").stat()
        except OSError:
            return None
        return folder, found.st_ino, found.st_mtime_ns


def load_policy(
    path: str | Path, results: str | Path | None = None, env: Any = None, trust: bool = False
) -> ServedPolicy:
    """Load the policy of a run (its newest checkpoint), of a checkpoint or of a bundle, on the CPU."""
    policy = PolicySource.find(path, results, env, trust).newest()
    assert policy is not None, "the first policy of a source is new"
    return policy
