"""Converts the state of an Algorithm to a Checkpoint, and restores it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

import outplay
from outplay import spaces
from outplay.algorithms import curriculum, imported, pending
from outplay.envs import GroupState, check_trust, env_name, import_path
from outplay.envs.group import LONGEST_REPLAY
from outplay.errors import CheckpointError
from outplay.policies import Policy, QPolicy
from outplay.runs.checkpoint import Checkpoint, read_state
from outplay.schema import check_array

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm

log = logging.getLogger("outplay")

A = TypeVar("A", bound="Algorithm")

# Settings that EnvGroups depend on: the state of an EnvGroup can be restored only if these are equal.
_GROUP_SETTINGS = (
    "seed",
    "env_config",
    "max_episode_steps",
    "frame_stack",
    "atari_preprocessing",
    "fire_on_reset",
    "batch_mode",
)


def from_folder(cls: type[A], folder: Path, env: Any, config: Mapping[str, Any] | None, trust: bool) -> A:
    """Make an algorithm from a checkpoint folder: see `Algorithm.from_checkpoint`."""
    state = read_state(folder)
    if "Config" not in vars(cls):  # Algorithm.from_checkpoint(): the checkpoint names the class
        from outplay.algorithms import find_algorithm

        cls = find_algorithm(state["algorithm"])  # type: ignore[assignment]
    check_algorithm(cls.__name__, state)
    check_trust(state["env"], env, trust, f"checkpoint {folder}", "give env= again, or trust=True")
    if (config or {}).get("evaluation_config") is None:
        where, remedy = f"checkpoint {folder}", "repeat evaluation_config in config=, or give trust=True"
        check_evaluation_trust(state["config"], env, trust, where, remedy)
    settings = {**imported.without_untrusted(state["config"], trust), **(config or {}), "env": None}
    remedy = "give {0} again in config=…, or trust=True"
    imported.check_trust(state["config"], settings, f"checkpoint {folder}", remedy)
    folders = map(Path, state["env_folders"] if trust else [])
    trainer = cls(env=state["env"] if env is None else env, config=settings, folders=folders, resuming=True)
    try:
        trainer.restore(folder)
    except BaseException:
        trainer.stop()
        raise
    return trainer


def described(algorithm: Algorithm) -> dict[str, Any]:
    """The algorithm, its progress and its environment, for the contract of an exported policy."""
    spec = algorithm.env_spec
    return {
        "algorithm": type(algorithm).__name__,
        "training_iteration": algorithm.iteration,
        "timesteps_total": algorithm.timesteps,
        "env": import_path(spec.name),
        "env_config": algorithm.get_config()["env_config"],
        "stacked_frames": spec.stacked_frames,
        "atari_preprocessing": spec.is_atari and spec.atari_preprocessing,
    }


def check_evaluation_trust(config: Mapping[str, Any], env: Any, trust: bool, where: str, remedy: str) -> None:
    """`check_trust` for `evaluation_config.env` of recorded settings. `env` is what the user repeated."""
    evaluation = config.get("evaluation_config")
    recorded = evaluation.get("env") if isinstance(evaluation, Mapping) else None
    if isinstance(recorded, str) and (env is None or env_name(env) != recorded):
        check_trust(recorded, None, trust, where, remedy)


def make_checkpoint(algorithm: Algorithm, known: Collection[str] = ()) -> Checkpoint:
    """The state of an algorithm as a Checkpoint. `known` segments are on disk already."""
    evaluation = pending.state(algorithm)
    learner, tensors = algorithm.learner.state()
    states = algorithm.training_workers.states
    groups, arrays = _groups_to_disk(states or [])
    state = {
        "outplay": outplay.__version__,
        "algorithm": type(algorithm).__name__,
        "env": import_path(algorithm.env_spec.name),
        "env_folders": [str(folder) for folder in algorithm.env_folders],
        "observation_space": str(algorithm.probe.observation_space),
        "action_space": str(algorithm.probe.action_space),
        "config": algorithm.get_config(),
        "training_iteration": algorithm.iteration,
        "timesteps_total": algorithm.timesteps,
        "time_total_s": algorithm.seconds,
        "episodes": algorithm.episodes.state(),
        "episode_returns": algorithm._returns,
        "exploration": algorithm.policy.exploration,
        "episode_lengths": algorithm._lengths,
        "level": None if algorithm.config.curriculum is None else asdict(algorithm.level),
        "evaluation": evaluation,
        "episodes_since_video": algorithm.episodes_since_video,
        "learner": learner,
        "groups": groups,
        "recording": None if algorithm.recording is None else algorithm.recording.state(),
        "exact": not algorithm.inexact and all(s.is_exact for s in states or []),
    }
    segments = dict(algorithm.learner.segments(known))
    return Checkpoint(state, dict(algorithm.policy.network.state_dict()), tensors, arrays, segments)


def restore_state(algorithm: Algorithm, saved: Checkpoint) -> tuple[list[GroupState] | None, bool]:
    """Restore an algorithm from a checkpoint.

    Returns the states of the EnvGroups (new ones if the settings differ), and whether the checkpoint's segments are
    those of the restored learner.
    """
    saved = upgraded(saved, algorithm.policy)
    state = saved.state
    algorithm.policy.check_weights(_weights_of(saved))
    try:
        algorithm.learner.check(state["learner"], saved.optimizer, saved.segments)
        states = _groups_from_disk(state["groups"], saved.envs, _action_template(algorithm), algorithm.policy)
        load_policy(algorithm.policy, saved)
        are_segments_valid = algorithm.learner.load(state["learner"], saved.optimizer, saved.segments)
        algorithm.iteration = int(state["training_iteration"])
        algorithm.timesteps = int(state["timesteps_total"])
        algorithm.seconds = float(state["time_total_s"])
        algorithm.episodes.load(state["episodes"])
        algorithm._returns, algorithm._lengths = _pending_episodes(state)
        algorithm.level = curriculum.restored_level(algorithm.config, state["level"])
        pending.load(algorithm, state["evaluation"])
        algorithm.episodes_since_video = state["episodes_since_video"]
        if algorithm.recording is not None and state.get("recording") is not None:
            algorithm.recording.load(state["recording"])
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"the checkpoint does not fit {type(algorithm).__name__}: {error}") from error
    config = algorithm.get_config()
    before = {"fire_on_reset": False, **state["config"]}  # checkpoints of 0.2.0 do not have this setting
    changed = [name for name in _GROUP_SETTINGS if config[name] != before.get(name)]
    if states and [s.lanes for s in states] != algorithm.group_sizes:
        changed.append("the EnvGroups")
    if changed:
        log.warning("%s differ from the checkpoint: the environments start new episodes", ", ".join(changed))
        new = [GroupState(size, task=states[0].task) for size in algorithm.group_sizes] if states else None
        return new, are_segments_valid
    if not state["exact"]:
        log.warning(
            "this checkpoint cannot be resumed exactly: an environment is not deterministic, or an episode is too long"
        )
    return states or None, are_segments_valid


def _pending_episodes(state: dict[str, Any]) -> tuple[list[float], list[int]]:
    """Returns and lengths of the episodes that ended after the last result. Version 0.2.0 did not save the lengths."""
    returns, lengths = list(state["episode_returns"]), list(state["episode_lengths"])
    if len(lengths) != len(returns):
        lengths = state["episodes"]["lengths"][-len(returns) :] if returns else []
        lengths = [0] * (len(returns) - len(lengths)) + lengths
    return returns, lengths


def restore_weights(algorithm: Algorithm, saved: Checkpoint) -> None:
    """Load the weights of a checkpoint, normalisers included; the checkpoint may belong to another algorithm."""
    saved = upgraded(saved, algorithm.policy)
    algorithm.policy.check_weights(_weights_of(saved))
    try:
        algorithm.learner.check_moments(saved.state["learner"], saved.optimizer)
        load_policy(algorithm.policy, saved)
        algorithm.learner.start_from_weights(saved.state["learner"], saved.optimizer)
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"the checkpoint does not fit {type(algorithm).__name__}: {error}") from error


def load_policy(policy: Policy, saved: Checkpoint) -> None:
    """Load the weights and exploration values of an upgraded checkpoint into a policy."""
    policy.set_weights(_weights_of(saved))
    found = saved.state["exploration"]
    policy.exploration = {name: float(found.get(name, value)) for name, value in policy.exploration.items()}


def upgraded(saved: Checkpoint, policy: Policy) -> Checkpoint:
    """A checkpoint in the format of this version. Version 0.2 stored ε in the weights of the Q-network and target."""
    if not isinstance(policy, QPolicy) or "epsilon" not in saved.weights:
        return saved
    weights = {name: tensor for name, tensor in saved.weights.items() if name != "epsilon"}
    optimizer = dict(saved.optimizer)
    if (target := optimizer.get("target")) is not None and target.dim() == 1:
        at = max(0, len(target) - 1 - policy.q_network.atoms.numel())  # the atoms come after ε
        optimizer["target"] = torch.cat([target[:at], target[at + 1 :]])
    epsilon = saved.weights["epsilon"]
    if epsilon.numel() != 1 or not 0 <= epsilon.item() <= 1:
        raise CheckpointError(f"the weights 'epsilon' are {epsilon.tolist()}, not a number from 0 to 1")
    state = {**saved.state, "exploration": {"epsilon": epsilon.item()}}
    return replace(saved, state=state, weights=weights, optimizer=optimizer)


def _weights_of(saved: Checkpoint) -> dict[str, np.ndarray]:
    """The network's weights as arrays, by name. `Policy.check_weights` checks names and shapes."""
    for name, tensor in saved.weights.items():
        if tensor.dtype != torch.float32:
            raise CheckpointError(f"the weights {name!r} are {tensor.dtype}, not torch.float32")
    return {name: tensor.numpy() for name, tensor in saved.weights.items()}


def _action_template(algorithm: Algorithm) -> np.ndarray:
    """An action of one lane as the environment receives it: recorded actions have its shape and dtype."""
    policy = algorithm.policy
    rows = spaces.empty(policy.leaves, 1)
    actions, _, _ = policy.act(rows, policy.initial_state(1), None, False, np.random.default_rng(0))
    template: np.ndarray = policy.to_env(actions)[0]
    return template


def check_fits(algorithm: Algorithm, state: dict[str, Any]) -> None:
    """Raise CheckpointError if the checkpoint belongs to another algorithm, or to other spaces."""
    check_algorithm(type(algorithm).__name__, state)
    check_spaces(algorithm, state)


def check_algorithm(name: str, state: dict[str, Any]) -> None:
    if state["algorithm"] != name:
        raise CheckpointError(f"the checkpoint belongs to {state['algorithm']}, not to {name}")


def check_spaces(algorithm: Algorithm, state: dict[str, Any]) -> None:
    for name in ("observation_space", "action_space"):
        own = str(getattr(algorithm.probe, name))
        if state[name] != own:
            raise CheckpointError(
                f"the checkpoint belongs to another environment: its {name.replace('_', ' ')} is {state[name]} "
                f"({state['env']}), not {own} ({algorithm.env_spec.name})"
            )


def _groups_to_disk(states: list[GroupState]) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    groups, arrays = [], {}
    for index, state in enumerate(states):
        group = {
            "lanes": state.lanes,
            "fragments": state.fragments,
            "episodes": state.episodes.tolist(),
            "returns": state.returns.tolist(),
            "lengths": state.lengths.tolist(),
            "marks": state.marks,
            "task": state.task,
            "tasks": state.tasks,
        }
        if state.vector is not None:
            group["vector"] = {k: v for k, v in state.vector.items() if not isinstance(v, np.ndarray)}
            for name, value in state.vector.items():
                if isinstance(value, np.ndarray):
                    arrays[f"{index}.vector.{name}"] = value
        else:
            for lane, pieces in enumerate(state.actions):
                if pieces:
                    arrays[f"{index}.actions.{lane}"] = np.concatenate(pieces)
        for name, array in state.policy_state.items():
            arrays[_policy_state_name(index, name)] = array
        groups.append(group)
    return groups, arrays


def _groups_from_disk(
    groups: list[dict[str, Any]], arrays: dict[str, np.ndarray], template: np.ndarray, policy: Policy
) -> list[GroupState]:
    states = []
    for index, group in enumerate(groups):
        prefix = f"{index}.vector."
        vector = None
        if group["vector"] is not None:
            saved = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
            vector = {**group["vector"], **saved}
        lanes = int(group["lanes"])
        logs = [arrays.get(f"{index}.actions.{lane}") for lane in range(lanes)]
        for lane, actions in enumerate(logs):
            if actions is not None:
                name = f"{index}.actions.{lane}"
                check_array(arrays, name, (min(len(actions), LONGEST_REPLAY), *template.shape), template.dtype)
                if not group["marks"]:
                    raise ValueError(f"{name}: the EnvGroup has no marks")
        states.append(
            GroupState(
                lanes=lanes,
                fragments=int(group["fragments"]),
                episodes=np.array(group["episodes"], np.int64),
                returns=np.array(group["returns"], np.float64),
                lengths=np.array(group["lengths"], np.int64),
                actions=[[] if log is None else [log] for log in logs],
                vector=vector,
                marks=list(group["marks"]),
                policy_state=_policy_state_from_disk(index, arrays, policy.initial_state(lanes)),
                task=group["task"],
                tasks=list(group["tasks"]),
            )
        )
    return states


def _policy_state_name(group: int, name: str) -> str:
    return f"{group}.policy_state.{name}"


def _policy_state_from_disk(
    group: int, arrays: dict[str, np.ndarray], initial: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The recurrent state of an EnvGroup; empty for complete episodes, before the first Fragment, in version 0.2."""
    prefix = _policy_state_name(group, "")
    saved = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    if saved and saved.keys() != initial.keys():
        raise ValueError(f"{prefix}* are {sorted(saved)}, and the policy's recurrent state is {sorted(initial)}")
    for name in saved:
        check_array(arrays, prefix + name, initial[name].shape, initial[name].dtype)
    return saved
