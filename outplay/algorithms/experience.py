"""Recording of an Algorithm's experience: the setting `output`, and evaluations that are recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from outplay.collect.episodes import Step
from outplay.data import transitions
from outplay.data.recording import Recording
from outplay.envs import import_path
from outplay.errors import ConfigError
from outplay.fragments import Fragment
from outplay.policies import Policy

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm

Array = np.ndarray


def recording_of(algorithm: Algorithm, output: str | Path | None) -> Recording | None:
    """The Recording of a trainer in the folder `output`; None: nothing is recorded."""
    if output is None:
        return None
    import outplay.data.parquet  # noqa: F401 - now, so that a missing package is noticed before training

    there = next(path for path in (Path(output), *Path(output).absolute().parents) if path.exists())
    if (problem := _problem_of(there)) is not None:
        raise ConfigError(f"output: {there} {problem}; name a folder for recorded experience")
    kind, env = type(algorithm).__name__, import_path(algorithm.env_spec.name)
    settings = algorithm.get_config()
    metadata = transitions.metadata_of(env, kind, algorithm.policy.leaves, algorithm.policy.action_space, settings)
    return Recording(output, re.sub(r"[^\w.-]+", "_", f"{kind}_{env}"), metadata)


def _problem_of(folder: Path) -> str | None:
    """Why nothing can be written into a folder; None if it can. Permissions do not tell it of /proc, for example."""
    if not folder.is_dir():
        return "is not a folder"
    try:
        with TemporaryDirectory(prefix=".outplay-", dir=folder):
            return None
    except OSError as error:
        return f"cannot be written: {error.strerror or error}"


def record(algorithm: Algorithm, fragments: Sequence[Fragment]) -> None:
    """Record Fragments, if the trainer has an `output`."""
    if algorithm.recording is None:
        return
    policy, config = algorithm.policy, algorithm.config
    complete = config.batch_mode == "complete_episodes"
    for fragment in fragments:
        log_probs = log_probabilities(policy, fragment.extras, fragment.actions, config.explore)
        env_actions = policy.to_env(fragment.actions)
        rows = transitions.rows_of(fragment, policy.leaves, env_actions, complete, log_probs)
        algorithm.recording.add(rows)


@torch.no_grad()
def log_probabilities(policy: Policy, extras: dict[str, Array], actions: Array, explore: bool) -> Array | None:
    """log π(a) of actions (…, n), from the recorded parameters; None if they are not samples of a distribution."""
    distribution: Any = policy.distribution
    if not (explore and policy.samples_distribution and hasattr(distribution, "log_prob") and "dist" in extras):
        return None
    params, batch = extras["dist"], extras["dist"].shape[:-1]
    flat = torch.from_numpy(np.array(params.reshape(-1, params.shape[-1])))
    taken = torch.from_numpy(np.array(actions.reshape(len(flat), *actions.shape[len(batch) :])))
    found: Array = distribution.log_prob(flat, taken).numpy().reshape(batch)
    return found


class EvaluationRecorder:
    """Records the episodes of an evaluation: `progress.on_step` of `EpisodeProgress`. Call `close` at the end.

    >>> recorder = EvaluationRecorder(trainer, "recorded")
    >>> trainer.evaluate(progress=EpisodeProgress(on_step=recorder.step))
    >>> recorder.close()
    """

    def __init__(self, algorithm: Algorithm, output: str | Path) -> None:
        recording = recording_of(algorithm, output)
        assert recording is not None
        self.recording = recording
        self._policy, self._explore = algorithm.policy, algorithm.config.evaluation_explore
        self._episodes = 0  # number of the first episode of the present batch
        self._batches: dict[int, list[Step]] = {}  # by the vector that plays them
        self._lanes: dict[int, Array] = {}  # episode_id of every lane

    def step(self, step: Step) -> None:
        """Accept one step of all lanes of a vector."""
        if step.is_first:
            self._finish(step.vector)
            lanes = len(step.rewards)
            self._lanes[step.vector] = self._episodes + np.arange(lanes)
            self._episodes += lanes
        self._batches.setdefault(step.vector, []).append(step)

    def close(self) -> None:
        """Write everything."""
        for vector in list(self._batches):
            self._finish(vector)
        self.recording.flush()

    def _finish(self, vector: int) -> None:
        """The steps of a batch of episodes as rows, episode by episode."""
        steps = self._batches.pop(vector, [])
        if not steps:
            return
        played = np.stack([step.playing for step in steps], 1)  # (lanes, T)

        def rows(arrays: list[Array]) -> Array:
            found: Array = np.stack(arrays, 1)[played]
            return found

        policy = self._policy
        found = {}
        for prefix, name in ((transitions.OBSERVATION, "before"), (transitions.NEXT_OBSERVATION, "after")):
            for i, column in enumerate(transitions.leaf_columns(policy.leaves, prefix)):
                found[column] = rows([getattr(step, name)[i] for step in steps])
        actions = rows([step.actions for step in steps])
        found[transitions.ACTION] = policy.to_env(actions)
        found[transitions.REWARD] = rows([step.rewards for step in steps]).astype(np.float32)
        found[transitions.TERMINATED] = rows([step.terminated for step in steps])
        found[transitions.TRUNCATED] = rows([step.truncated for step in steps])
        episode, time = np.nonzero(played)
        found[transitions.EPISODE], found[transitions.STEP] = self._lanes[vector][episode], time
        if steps[0].mask is not None:
            found[transitions.MASK] = rows([step.mask for step in steps if step.mask is not None])
            found[transitions.NEXT_MASK] = rows([step.next_mask for step in steps if step.next_mask is not None])
        if "dist" in steps[0].extras:
            extras = {"dist": rows([step.extras["dist"] for step in steps])}
            if (log_probs := log_probabilities(policy, extras, actions, self._explore)) is not None:
                found |= {transitions.LOGP: log_probs, transitions.DIST: extras["dist"]}
        self.recording.add(found)
        self.recording.end_iteration()
