"""Recurrent state and action masks over placements, kills and resumes: two tiny policies show that nothing is lost."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from safetensors.numpy import load_file, save_file

from outplay import A2C, PG, PPO, Algorithm, CheckpointError, ConfigError, EnvError
from outplay.collect.video import record_video
from outplay.fragments import Fragment
from outplay.policies import Policy
from tests import probes

Array = np.ndarray
SMALL = {"num_envs": 8, "train_batch_size": 160, "seed": 7, "rollout_fragment_length": 7}

PREVIOUS = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True, "max_seq_len": 3}
ATTENTION = {"use_attention": True, "attention_memory_inference": 5}


class Counting(Policy):
    """Counts the steps since its episode began, and lets the count decide on every third action.

    So a count that is wrong anywhere changes the experience, and with it the weights.
    """

    def initial_state(self, lanes: int) -> dict[str, Array]:
        return {"count": np.zeros(lanes, np.int64)}

    def act(self, observations: Any, state: Any, mask: Any, explore: bool, rng: Any) -> Any:
        actions, _, extras = super().act(observations, {}, mask, explore, rng)
        count = state["count"]
        actions = np.where(count % 3 == 2, count // 3 % extras["dist"].shape[-1], actions)
        return actions, {"count": count + 1}, {**extras, "count": count}


class Maze(gymnasium.Env[Any, Any]):
    """A walk on 0 … 6, where stepping off either end is not allowed; it raises if that is done all the same.

    With `parts`, each action is two steps, the second one masked for the place before the first.
    """

    observation_space: spaces.Space[Any] = spaces.Box(0, 1, (2,), np.float32)
    last = 6

    def __init__(self, parts: bool = False) -> None:
        self.action_space = spaces.MultiDiscrete([3, 2]) if parts else spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(0, self.last + 1)), 0
        return self._observe(), {}

    def action_masks(self) -> Array:
        walk = [self.place > 0, True, self.place < self.last]  # left, stay, right
        if isinstance(self.action_space, spaces.Discrete):
            return np.array(walk)
        return np.array([*walk, True, self.place % 2 == 0], np.int8)

    def step(self, action: Any) -> Any:
        first, *second = np.atleast_1d(action).tolist()
        allowed = self.action_masks()
        assert allowed[first], f"{first} is not allowed at {self.place}"
        assert not second or allowed[3 + second[0]], f"{second} is not allowed at {self.place}"
        self.place += first - 1
        self.steps += 1
        over = bool(self.np_random.random() < 0.05)
        return self._observe(), float(self.place == self.last), over, self.steps >= 25 and not over, {}

    def _observe(self) -> Array:
        return np.array([self.place / self.last, self.steps / 25], np.float32)


class CountingPPO(PPO):
    policy_class = Counting


class CountingA2C(A2C):
    policy_class = Counting


class CountingPG(PG):
    policy_class = Counting


class MaskedCountingPPO(PPO):
    """Both at once: masks are for what the network draws, so the count is only counted."""

    class Policy(Counting):
        def act(self, observations: Any, state: Any, mask: Any, explore: bool, rng: Any) -> Any:
            actions, next_state, extras = Policy.act(self, observations, {}, mask, explore, rng)
            del next_state
            return actions, {"count": state["count"] + 1}, {**extras, "count": state["count"]}

    policy_class = Policy


CASES: dict[str, tuple[type[Algorithm], Any, dict[str, Any]]] = {
    "counting": (CountingPPO, probes.Walk, {"env_config": {"length": 30}}),
    "counting, native": (CountingA2C, "CartPole-v1", {}),
    "counting, whole episodes": (CountingPG, probes.Walk, {"env_config": {"length": 21}}),
    "masked": (PPO, Maze, {}),
    "masked parts": (A2C, Maze, {"env_config": {"parts": True}}),
    "masked, whole episodes": (PG, Maze, {}),
    "masked and counting": (MaskedCountingPPO, Maze, {"normalize_observations": True}),
    "lstm": (PPO, probes.Walk, {"env_config": {"length": 30}, "model": {"use_lstm": True, **PREVIOUS}}),
    "gru, masked": (A2C, Maze, {"env_config": {"parts": True}, "model": {"use_gru": True, **PREVIOUS}}),
    "attention, native": (PPO, "CartPole-v1", {"model": {"use_attention": True, "attention_memory_inference": 5}}),
    "attention, masked, whole episodes": (
        PG,
        Maze,
        {"model": {"use_attention": True, "attention_memory_inference": 5}},
    ),
}


def watched(trainer: Algorithm) -> list[Fragment]:
    """All Fragments that the trainer collects from now on."""
    seen: list[Fragment] = []
    collect = trainer.collector.collect

    def collecting(weights: Any, wait: bool = True) -> list[Fragment]:
        fragments = collect(weights, wait)
        seen.extend(fragments)
        return fragments

    trainer.collector.collect = collecting  # type: ignore[method-assign]
    return seen


def check_counts(fragments: list[Fragment], running: dict[int, Array] | None = None) -> dict[int, Array]:
    """Every recorded count is the number of steps since the episode began, also from one Fragment to the next."""
    running = dict(running or {})
    for fragment in fragments:
        if "count" not in fragment.extras:
            continue
        counts = running.get(fragment.group, np.zeros(fragment.rewards.shape[1], np.int64))
        assert np.array_equal(fragment.policy_state["count"], np.where(fragment.episode_start[0], 0, counts))
        for t in range(len(fragment.rewards)):
            counts = np.where(fragment.episode_start[t], 0, counts)
            assert np.array_equal(fragment.extras["count"][t][fragment.valid[t]], counts[fragment.valid[t]])
            counts = counts + 1
        ended = (fragment.terminated | fragment.truncated)[-1]
        if (
            fragment.valid.all() and not ended.all()
        ):  # otherwise perhaps of whole episodes: the next Fragment starts anew
            assert np.array_equal(fragment.last_policy_state["count"], np.where(ended, 0, counts))
        running[fragment.group] = counts
    return running


def check_masks(fragments: list[Fragment]) -> None:
    """Every action of a masked environment was allowed, and some actions were forbidden."""
    masked = [fragment for fragment in fragments if fragment.action_mask is not None]
    assert not masked or not all(fragment.action_mask.all() for fragment in masked)  # type: ignore[union-attr]
    for fragment in masked:
        assert fragment.action_mask is not None
        assert fragment.action_mask.shape[:2] == fragment.rewards.shape
        parts = np.split(fragment.action_mask, [3], -1)[: fragment.actions.ndim - 1]
        for i, mask in enumerate(parts):
            chosen = fragment.actions if fragment.actions.ndim == 2 else fragment.actions[..., i]
            taken = np.take_along_axis(mask, chosen[..., None], -1)[..., 0]
            assert taken[fragment.valid].all()
        forbidden = fragment.extras["dist"][~fragment.action_mask]
        assert (forbidden == np.float32(-1e30)).all()


def train(case: str, num_workers: int, iterations: int = 4, **more: Any) -> tuple[bytes, list[Fragment]]:
    algorithm, env, config = CASES[case]
    with algorithm(env=env, config={**SMALL, **config, "num_workers": num_workers, **more}) as trainer:
        seen = watched(trainer)
        for _ in range(iterations):
            trainer.train()
        return trainer.policy.flat.numpy().tobytes(), seen


@pytest.fixture(scope="module")
def alone() -> dict[str, bytes]:
    """The weights of each case, trained in the program itself."""
    return {case: train(case, 0)[0] for case in CASES}


@pytest.mark.parametrize("case", CASES)
def test_counts_and_masks_are_right(case: str) -> None:
    _, fragments = train(case, 0)
    check_counts(fragments)
    check_masks(fragments)
    assert ("count" in fragments[0].extras) == ("counting" in case)
    assert (fragments[0].action_mask is not None) == ("masked" in case)


@pytest.mark.parametrize("algorithm", [PPO, A2C, PG])
@pytest.mark.parametrize("parts", [False, True])
def test_losses_are_those_of_the_allowed_actions(algorithm: type[Algorithm], parts: bool) -> None:
    """Logits that are all zero make the allowed actions equally likely: the entropy is the log of their number."""
    config = {**SMALL, "num_workers": 0, "lr": 0.0, "env_config": {"parts": parts}}
    with algorithm(env=Maze, config=config) as trainer:
        trainer.policy.flat.zero_()
        seen = watched(trainer)
        metrics = trainer.train()["learner"]
        masks = np.concatenate([f.action_mask[f.valid] for f in seen])  # type: ignore[index]
        expected = sum(np.log(part.sum(-1)) for part in np.split(masks, [3], -1)[: 1 + parts]).mean()
        assert metrics["entropy"] == pytest.approx(expected, abs=1e-4)
        assert expected < np.log(3) + parts * np.log(2) - 0.01
        if algorithm is PPO:
            assert (metrics["kl"], metrics["clip_fraction"]) == (pytest.approx(0.0, abs=1e-6), 0.0)


BOTH = "masked and counting"


def _placements() -> Iterator[Any]:
    """A few that take little time, and the others as slow ones; on Ray one case, since its workers start slowly."""
    for engine, case, num_workers in itertools.product(("inline", "process", "ray"), CASES, (1, 2)):
        usual = engine == "inline" or (engine == "process" and case == BOTH and num_workers == 2)
        if engine != "ray" or case == BOTH:
            yield pytest.param(engine, case, num_workers, marks=[] if usual else [pytest.mark.slow])


@pytest.mark.parametrize(("engine", "case", "num_workers"), list(_placements()), indirect=["engine"])
def test_placement_changes_nothing(engine: str, case: str, num_workers: int, alone: dict[str, bytes]) -> None:
    weights, fragments = train(case, num_workers)
    check_counts(fragments)
    check_masks(fragments)
    assert weights == alone[case]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [BOTH, *(pytest.param(case, marks=pytest.mark.slow) for case in ("counting", "counting, native"))]
)
def test_a_killed_worker_changes_nothing(process_engine: None, case: str, alone: dict[str, bytes]) -> None:
    algorithm, env, config = CASES[case]
    with algorithm(env=env, config={**SMALL, **config, "num_workers": 2}) as trainer:
        seen = watched(trainer)
        trainer.train()
        for _ in range(3):
            (_, victim), _ = trainer.workers.foreach_worker(lambda worker: worker.process())
            os.kill(victim, signal.SIGKILL)
            trainer.train()
        assert trainer.workers.replaced == 3
        check_counts(seen)
        check_masks(seen)
        assert trainer.policy.flat.numpy().tobytes() == alone[case]


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_goes_on_exactly(case: str, tmp_path: Path, alone: dict[str, bytes]) -> None:
    algorithm, env, config = CASES[case]
    settings = {**SMALL, **config, "num_workers": 0}
    with algorithm(env=env, config=settings) as first:
        seen = watched(first)
        for _ in range(2):
            first.train()
        path = first.save(tmp_path)
    with algorithm(env=env, config=settings) as second:
        second.restore(path)
        after = watched(second)
        for _ in range(2):
            second.train()
        check_counts(after, check_counts(seen))
        assert second.policy.flat.numpy().tobytes() == alone[case]


PROGRAM = """
import os, signal, sys
from pathlib import Path
from tests.policies.test_recurrent_and_masked import CASES, SMALL
algorithm, env, config = CASES[sys.argv[1]]
folder, num_workers, end = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

def collected_and_killed(weights):
    collect(weights)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    with algorithm(env=env, config={**SMALL, **config, "num_workers": num_workers}) as trainer:
        if folder.exists():
            trainer.restore(folder)
        while trainer.iteration < 4:
            collect = trainer.collector.collect
            if trainer.iteration == end:
                trainer.collector.collect = collected_and_killed
            trainer.train()
            trainer.save(folder)
        (folder / "weights").write_bytes(trainer.policy.flat.numpy().tobytes())
"""


@pytest.mark.parametrize(("case", "num_workers"), [(BOTH, 0), ("counting", 1)])
@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bytes(
    case: str, num_workers: int, tmp_path: Path, alone: dict[str, bytes]
) -> None:
    """kill -9 in the middle of an iteration, twice."""
    folder = tmp_path / "checkpoints"
    for end, status in ((1, -signal.SIGKILL), (3, -signal.SIGKILL), (4, 0)):
        assert not (folder / "weights").exists()
        command = [sys.executable, "-c", PROGRAM, case, str(folder), str(num_workers), str(end)]
        done = subprocess.run(command, cwd=Path(__file__).parents[2], timeout=120, check=False)
        assert done.returncode == status
    assert (folder / "weights").read_bytes() == alone[case]


def saved(tmp_path: Path) -> tuple[CountingPPO, Path]:
    with CountingPPO(env=probes.Walk, config={**SMALL, "num_workers": 0}) as trainer:
        trainer.train()
        return trainer, Path(trainer.save(tmp_path))


def rewritten(checkpoint: Path, change: Any) -> Path:
    """The checkpoint with other arrays of its environments, as if it had been written so."""
    arrays = dict(load_file(checkpoint / "envs.safetensors"))
    change(arrays)
    save_file(arrays, checkpoint / "envs.safetensors")
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["envs.safetensors"] = hashlib.sha256((checkpoint / "envs.safetensors").read_bytes()).hexdigest()
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    return checkpoint


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"0.policy_state.count": np.zeros(3, np.int64)}, r"0.policy_state.count is int64 of shape \(3,\), not int64"),
        ({"0.policy_state.count": np.zeros(2, np.float32)}, "0.policy_state.count is float32 of shape"),
        ({"0.policy_state.other": np.zeros(2, np.int64)}, r"0.policy_state.\* are \['count', 'other'\], and the"),
    ],
)
def test_a_state_that_does_not_fit_the_policy_is_refused(change: Any, sentence: str, tmp_path: Path) -> None:
    _, checkpoint = saved(tmp_path)
    rewritten(checkpoint, lambda arrays: arrays.update(change))
    with CountingPPO(env=probes.Walk, config={**SMALL, "num_workers": 0}) as trainer:
        with pytest.raises(CheckpointError, match=sentence):
            trainer.restore(checkpoint)
        assert trainer.iteration == 0


def test_a_checkpoint_without_recurrent_state_begins_with_the_initial_one(tmp_path: Path) -> None:
    _, checkpoint = saved(tmp_path)
    rewritten(checkpoint, lambda arrays: [arrays.pop(f"{group}.policy_state.count") for group in range(4)])
    with CountingPPO(env=probes.Walk, config={**SMALL, "num_workers": 0}) as trainer:
        trainer.restore(checkpoint)
        seen = watched(trainer)
        trainer.train()
        assert all(not fragment.policy_state["count"].any() for fragment in seen[:4])


def test_a_state_of_objects_is_refused() -> None:
    class Objects(Counting):
        def initial_state(self, lanes: int) -> dict[str, Array]:
            return {"count": np.array([None] * lanes)}

    class ObjectsPPO(PPO):
        policy_class = Objects

    with (
        ObjectsPPO(env=probes.Walk, config={**SMALL, "num_workers": 0}) as trainer,
        pytest.raises(TypeError, match="state 'count' of the policy has dtype object, which cannot be saved"),
    ):
        trainer.train()


def test_a_state_that_is_changed_in_place_is_recorded_as_it_was() -> None:
    class InPlace(Counting):
        def act(self, observations: Any, state: Any, mask: Any, explore: bool, rng: Any) -> Any:
            actions, _, extras = super().act(observations, {"count": state["count"].copy()}, mask, explore, rng)
            state["count"] += 1
            return actions, state, extras

    class InPlacePPO(PPO):
        policy_class = InPlace

    with InPlacePPO(env=probes.Walk, config={**SMALL, "num_workers": 0}) as trainer:
        seen = watched(trainer)
        for _ in range(2):
            trainer.train()
        check_counts(seen)


def test_single_actions_with_a_state_and_a_mask() -> None:
    with MaskedCountingPPO(env=Maze, config={**SMALL, "num_workers": 0}) as trainer:
        observation, mask = np.zeros(2, np.float32), np.array([False, False, True])
        state: Any = trainer.get_policy().initial_state(1)
        for step in range(3):
            action, state, extras = trainer.compute_single_action(observation, state, mask=mask)
            assert (action, extras["count"]) == (2, step)
        assert trainer.compute_single_action(observation, mask=[0, 1, 0]) == 1  # without a state: an episode begins
        masks = {"left": [1, 0, 0], "right": [0, 0, 1]}
        actions = trainer.compute_actions({"left": observation, "right": observation}, masks=masks)
        assert actions == {"left": 0, "right": 2}
        with pytest.raises(ConfigError, match=r"get_policy\(\).initial_state\(1\) gives the first"):
            trainer.compute_single_action(observation, {"count": np.zeros(2, np.int64)})
        with pytest.raises(EnvError, match=r"^the mask has shape \(2,\); one value per action is needed: \(3,\)"):
            trainer.compute_single_action(observation, mask=[True, False])
        with pytest.raises(ConfigError, match="masks must have the same names as the observations"):
            trainer.compute_actions({"left": observation}, masks=masks)


def test_evaluations_have_states_and_masks_of_their_own() -> None:
    """The masked environment raises on an action that is not allowed; and training goes on as if nothing had been."""
    with MaskedCountingPPO(env=Maze, config={**SMALL, "num_workers": 0}) as trainer:
        seen = watched(trainer)
        for _ in range(3):
            trainer.train()
            assert trainer.evaluate()["episodes"] == 10
        check_counts(seen)


class DrawnMaze(Maze):
    """Shows where it is; filmed, it still raises on an action that is not allowed."""

    render_mode = "rgb_array"

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()

    def render(self) -> Array:
        picture = np.zeros((64, 64, 3), np.uint8)
        picture[:, 8 * self.place : 8 * self.place + 8] = 255
        return picture


def test_a_video_has_a_state_and_masks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imageio_ffmpeg")
    with MaskedCountingPPO(env=DrawnMaze, config={**SMALL, "num_workers": 0}) as trainer:
        counts: list[int] = []
        act = trainer.policy.act

        def counted(*arguments: Any) -> Any:
            actions, state, extras = act(*arguments)
            counts.append(int(extras["count"][0]))
            return actions, state, extras

        monkeypatch.setattr(trainer.policy, "act", counted)
        for seed in range(3):
            counts.clear()
            record_video(trainer.env_spec, trainer.policy, tmp_path / "maze.mp4", seed, explore=True)
            assert counts == list(range(len(counts)))
