"""Finding, making, adapting, stepping and checking environments."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

import outplay
from outplay import PG, PPO, EnvError
from outplay.envs import EnvGroup, EnvSpec, GroupState, find_env, has_native_vector, make_vector, probe_env, split_envs
from outplay.envs.check import check_env
from outplay.envs.lookup import is_import_path
from outplay.envs.native import _FORGETFUL, AtariVector
from outplay.envs.pong import PongDifference
from tests import probes

# Finding


def test_a_gymnasium_id() -> None:
    assert find_env("CartPole-v1") == ("CartPole-v1", None)
    with pytest.raises(EnvError, match=r"no environment 'CartPole-v9'\. Did you mean 'CartPole-v1'"):
        find_env("CartPole-v9")
    with pytest.raises(EnvError, match=r"no environment 'Nothing'.*; a Gymnasium id, an import path"):
        find_env("Nothing")


def test_an_import_path_is_looked_up_beside_the_file_and_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder, module in ((beside, "env_beside"), (here, "env_here")):
        folder.mkdir()
        (folder / f"{module}.py").write_text("from tests.probes import Walk\nclass Mine(Walk):\n    pass\n")
    monkeypatch.chdir(here)
    for name in ("env_beside.Mine", "env_beside:Mine", "env_here.Mine"):
        found, factory = find_env(name, [beside])
        assert (found, factory.__name__) == (name, "Mine")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "no_such_module.Env",
            "no module 'no_such_module' for the environment 'no_such_module.Env'; it is looked up beside",
        ),
        ("tests.probes:Wlak", "module 'tests.probes' has no 'Wlak'. Did you mean 'Walk'?"),
        ("tests.probes:np", "'tests.probes:np' is a module, not a class"),
        ("tests.no_such:Walk", "no module 'tests.no_such'"),
    ],
)
def test_an_import_path_that_does_not_exist(name: str, sentence: str) -> None:
    with pytest.raises(EnvError) as caught:
        find_env(name)
    assert sentence in str(caught.value)


def test_a_module_that_raises_or_needs_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raising_env.py").write_text("1 / 0\n")
    (tmp_path / "needing_env.py").write_text("import a_module_nobody_has\n")
    with pytest.raises(EnvError, match=r"importing 'raising_env' .* raised ZeroDivisionError"):
        find_env("raising_env.Env")
    with pytest.raises(EnvError, match="needs the module 'a_module_nobody_has', which is not installed"):
        find_env("needing_env.Env")


def test_a_registered_name() -> None:
    outplay.register_env("probe-walk", lambda env_config: probes.Walk(**env_config))
    with PPO(env="probe-walk", config={"env_config": {"length": 3}, "num_workers": 0}) as trainer:
        assert trainer.env_spec.make().unwrapped.length == 3  # type: ignore[attr-defined]
    assert not is_import_path("probe-walk")
    with pytest.raises(outplay.ConfigError, match="takes a class or a function, not 5"):
        outplay.register_env("x", 5)  # type: ignore[arg-type]


def test_what_counts_as_code_to_import() -> None:
    assert is_import_path("custom_env.CustomEnv")
    assert is_import_path("package.module:Class")
    assert not is_import_path("CartPole-v1")
    assert not is_import_path("ALE/Pong-v5")


# Making


def test_env_config_is_one_dict_or_keywords() -> None:
    def takes_env_config(env_config: dict[str, Any]) -> Any:
        return probes.Walk(**env_config)

    def takes_config(config: dict[str, Any]) -> Any:
        return probes.Walk(**config)

    for factory in (takes_env_config, takes_config, probes.Walk):
        spec = EnvSpec("it", factory, {"length": 3})
        assert spec.make().unwrapped.length == 3  # type: ignore[attr-defined]
    with pytest.raises(EnvError, match=r"'it' could not be made with env_config \{'size': 3\}: TypeError"):
        EnvSpec("it", probes.Walk, {"size": 3}).make()
    with pytest.raises(EnvError, match="could not be made with env_config"):
        EnvSpec("CartPole-v1", None, {"size": 3}).make()


def test_time_limits_and_frame_stacks() -> None:
    env = EnvSpec("it", probes.Walk, max_episode_steps=2, frame_stack=3).make()
    observation, _ = env.reset(seed=0)
    assert observation.shape == (3, 2)
    env.step(1)
    assert env.step(1)[3] is True
    assert make_vector(EnvSpec("CartPole-v1", max_episode_steps=3), 2).cart.max_episode_steps == 3  # type: ignore[attr-defined]


def test_an_old_environment_is_adapted_with_a_word_on_what_to_change(caplog: pytest.LogCaptureFixture) -> None:
    env = EnvSpec("old one", probes.Old, {"cut": True}).make()
    assert "let reset(seed=None, options=None) return (observation, info)" in caplog.text
    first, info = env.reset(seed=4)
    again, _ = env.reset(seed=4)
    assert np.array_equal(first, again)
    assert info == {}
    steps = [env.step(1) for _ in range(5)]
    assert [(s[2], s[3]) for s in steps] == [(False, False)] * 4 + [(False, True)]
    env = EnvSpec("old one", probes.Old).make()
    env.reset(seed=4)
    assert [env.step(1)[2:4] for _ in range(5)][-1] == (True, False)


def test_a_vector_is_refused_by_the_name_of_its_autoreset_mode() -> None:
    def vector() -> Any:
        return gymnasium.make_vec("CartPole-v1", 2)

    with pytest.raises(EnvError, match=r"made a VectorEnv \(autoreset mode AutoresetMode.NEXT_STEP\)"):
        EnvSpec("it", vector).make()


def test_something_that_is_no_environment() -> None:
    with pytest.raises(EnvError, match=r"'it' \(a dict\) has no reset"):
        EnvSpec("it", dict).make()


def test_which_vector_is_used() -> None:
    assert has_native_vector(EnvSpec("CartPole-v1"))
    assert has_native_vector(EnvSpec("CartPole-v1", None, {"sutton_barto_reward": True}))
    assert not has_native_vector(EnvSpec("CartPole-v1", frame_stack=2))
    assert not has_native_vector(EnvSpec("Acrobot-v1"))
    assert has_native_vector(EnvSpec("ALE/Pong-v5"))
    assert not has_native_vector(EnvSpec("ALE/Pong-v5", atari_preprocessing=False))


# Vectors: one suite for all of them

VECTORS = {
    "Python": EnvSpec("walk", probes.Walk, {"length": 12}),
    "CartPole": EnvSpec("CartPole-v1", max_episode_steps=30),
    "Atari": EnvSpec("ALE/Pong-v5", None, {"repeat_action_probability": 0.25}, max_episode_steps=40),
    "Atari with FIRE": EnvSpec("ALE/Breakout-v5", max_episode_steps=40, fire_on_reset=True),
    "Pong as differences": EnvSpec(
        "PongDifference", PongDifference, {"repeat_action_probability": 0.25}, max_episode_steps=40
    ),
}


def drawn(rng: np.random.Generator, vector: Any) -> np.ndarray:
    space = vector.action_space
    return rng.integers(0, space.n if isinstance(space, spaces.Discrete) else 2, (vector.num_envs, *space.shape))


def play(vector: Any, steps: int, seed: int = 0) -> list[bytes]:
    """Everything that a vector says while ended lanes are started again at once."""
    rng = np.random.default_rng(seed)
    said = [leaf.tobytes() for leaf in vector.reset(np.ones(vector.num_envs, bool), list(range(vector.num_envs)))]
    for t in range(steps):
        actions = drawn(rng, vector)
        observations, rewards, terminated, truncated = vector.step(actions)
        said += [a.tobytes() for a in (*observations, rewards, terminated, truncated)]
        ended = terminated | truncated
        if ended.any():
            seeds = [1000 * t + int(lane) for lane in np.flatnonzero(ended)]
            said += [leaf.tobytes() for leaf in vector.reset(ended, seeds)]
    return said


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "differences" in name else ()) for name in VECTORS]
)
def test_equal_seeds_give_equal_episodes(name: str) -> None:
    one, other = make_vector(VECTORS[name], 3), make_vector(VECTORS[name], 3, num_threads=2)
    assert play(one, 60) == play(other, 60)
    assert play(one, 60) == play(other, 60)  # also when they have been used before
    assert play(one, 60) != play(other, 60, seed=1)


@pytest.mark.parametrize("name", VECTORS)
def test_a_reset_leaves_the_other_lanes_alone(name: str) -> None:
    vector = make_vector(VECTORS[name], 3)
    vector.reset(np.ones(3, bool), [0, 1, 2])
    for _ in range(3):
        observations, *_ = vector.step(np.ones((3, *vector.action_space.shape), np.int64))
    before = [leaf.copy() for leaf in observations]
    after = vector.reset(np.array([False, True, False]), [9])
    for old, new in zip(before, after, strict=True):
        assert np.array_equal(old[[0, 2]], new[[0, 2]])
        assert not np.array_equal(old[1], new[1])


@pytest.mark.parametrize("name", VECTORS)
def test_an_ended_lane_starts_again_without_a_step_that_is_none(name: str) -> None:
    """The step after a restart is a real one: its reward is paid and its episode counts from there."""
    vector = make_vector(VECTORS[name], 1)
    vector.reset(np.ones(1, bool), [0])
    for _ in range(2):
        for steps in range(1, 200):
            _, _, terminated, truncated = vector.step(np.full((1, *vector.action_space.shape), steps % 2))
            if terminated[0] or truncated[0]:
                break
        assert steps > 1
        vector.reset(np.ones(1, bool), [1])
    if name == "CartPole":
        assert vector.step(np.array([0]))[1][0] == 1.0


@pytest.mark.parametrize("name", VECTORS)
def test_a_step_that_was_begun_before_is_the_same(name: str) -> None:
    one, other = make_vector(VECTORS[name], 2), make_vector(VECTORS[name], 2)
    rng = np.random.default_rng(0)
    for vector in (one, other):
        vector.reset(np.ones(2, bool), [0, 1])
    for _ in range(10):
        actions = drawn(rng, one)
        other.begin(actions)
        for mine, theirs in zip(_all(one.step(actions)), _all(other.step(actions)), strict=True):
            assert np.array_equal(mine, theirs)


def _all(step: Any) -> list[np.ndarray]:
    observations, *rest = step
    return [*observations, *rest]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("fire", "lives"), [(False, {4}), (True, {0})])
def test_breakout_goes_on_after_a_lost_life_if_fire_is_pressed(apart: bool, fire: bool, lives: set[int]) -> None:
    """A player who does nothing at all loses one ball, and then waits for ever; or loses all five."""
    vector = make_vector(EnvSpec("ALE/Breakout-v5", fire_on_reset=fire), 2, apart=apart)
    assert isinstance(vector, AtariVector)
    vector.reset(np.ones(2, bool), [0, 1])
    playing, ended = np.ones(2, bool), np.zeros(2, np.int64)
    for t in range(1, 400):
        _, _, terminated, _ = vector.step(np.zeros(2, np.int64), playing)
        ended[terminated & playing] = t
        playing &= ~terminated
        if not playing.any():
            break
    assert (ended > 0).all() == fire
    if apart:
        assert set(vector._lives.tolist()) == lives
    assert isinstance(make_vector(EnvSpec("ALE/Freeway-v5", fire_on_reset=True), 1), AtariVector)  # it has no FIRE


@pytest.mark.parametrize("name", ["Atari", "Atari with FIRE"])
def test_games_apart_are_the_same_and_those_that_wait_do_not_move(name: str) -> None:
    spec = VECTORS[name]
    together, apart = make_vector(spec, 3, 2), make_vector(spec, 3, 2, apart=True)
    assert play(together, 60) == play(apart, 60)
    apart.reset(np.ones(3, bool), [0, 1, 2])
    actions = np.ones((3, *apart.action_space.shape), np.int64)
    before = [leaf.copy() for leaf in _all(apart.step(actions))]
    after = _all(apart.step(actions, np.array([True, False, True])))
    assert np.array_equal(before[0][1], after[0][1])
    assert not np.array_equal(before[0][0], after[0][0])
    one = make_vector(spec, 1)
    one.reset(np.ones(1, bool), [1])
    for _ in range(2):
        expected = _all(one.step(actions[:1]))
    assert np.array_equal(_all(apart.step(actions))[0][1], expected[0][0])  # it goes on where it had stopped


@pytest.mark.parametrize("sticky", [0.0, 0.25])
def test_pong_as_differences_is_gymnasiums_game(sticky: float) -> None:
    ours = PongDifference(repeat_action_probability=sticky, render_mode="rgb_array")
    game = gymnasium.make("ALE/Pong-v5", frameskip=4, repeat_action_probability=sticky)
    assert not ours.reset(seed=3)[0].any()
    before = game.reset(seed=3)[0]
    rng = np.random.default_rng(0)
    moved = 0
    for _ in range(400):
        up = int(rng.integers(0, 2))
        observation, reward, terminated, truncated, _ = ours.step(np.array([up]))
        frame, *theirs = game.step(2 if up else 3)
        if sticky == 0:  # with sticky actions, Gymnasium seeds the emulator in its own way
            difference = things(frame).astype(int) - things(before)
            assert np.array_equal(observation, difference)
            assert [reward, terminated, truncated] == theirs[:3]
            assert np.array_equal(ours.render(), frame)
        before = frame
        moved += int((observation != 0).sum())
    assert 5 < moved / 400 < 100  # paddles and ball: almost all of 6400 pixels are zero


def things(frame: np.ndarray) -> np.ndarray:
    return ~np.isin(frame[35:195:2, ::2, 0].ravel(), (0, 109, 144))


@pytest.mark.parametrize("apart", [False, True])
def test_a_step_that_nobody_waited_for_is_forgotten_by_a_reset(apart: bool) -> None:
    spec = VECTORS["Atari"]
    left, fresh = make_vector(spec, 2, apart=apart), make_vector(spec, 2, apart=apart)
    left.reset(np.ones(2, bool), [0, 1])
    left.begin(np.ones(2, np.int64))
    assert play(left, 10) == play(fresh, 10)


@pytest.mark.parametrize("game", sorted(_FORGETFUL))
def test_a_game_that_is_seeded_now_and_then_forgets_what_was_played(game: str) -> None:
    name = "ALE/" + "".join(word.capitalize() for word in game.split("_")) + "-v5"
    spec = EnvSpec(name, None, {"repeat_action_probability": 0.0})
    played, led = make_vector(spec, 1), make_vector(spec, 1)
    assert played.episodes_per_seed > 1
    everyone = np.ones(1, bool)
    rng = np.random.default_rng(0)
    for vector in (played, led):
        vector.reset(everyone, [5])
    for _ in range(300):
        _, _, terminated, _ = played.step(drawn(rng, played))
        if terminated[0]:
            break
    for _ in range(2):
        assert np.array_equal(played.reset(everyone, [None])[0], led.reset(everyone, [None])[0])
        for _ in range(60):
            actions = drawn(rng, played)
            for mine, theirs in zip(_all(played.step(actions)), _all(led.step(actions)), strict=True):
                assert np.array_equal(mine, theirs)


def test_pong_as_differences_names_a_wrong_option() -> None:
    with pytest.raises(EnvError, match="frame_skip"):
        make_vector(EnvSpec("PongDifference", PongDifference, {"frame_skip": 2}), 1)


def test_cartpole_is_gymnasiums() -> None:
    """Step by step the same as the single environment, from the same state."""
    vector, single = make_vector(EnvSpec("CartPole-v1"), 1), gymnasium.make("CartPole-v1")
    single.reset(seed=0)
    (observation,) = vector.reset(np.ones(1, bool), [0])
    single.unwrapped.state = vector.cart.state[:, 0].copy()  # type: ignore[attr-defined]
    for step in range(300):
        action = int(observation[0, 2] + 0.3 * observation[0, 3] > 0)
        theirs = single.step(action)
        (observation,), rewards, terminated, truncated = vector.step(np.array([action]))
        assert observation[0] == pytest.approx(theirs[0], abs=1e-5), step
        assert (rewards[0], terminated[0], truncated[0]) == theirs[1:4]
        if terminated[0]:
            break


# EnvGroups


class Drawing:
    """A policy that draws its actions from the stream that it is given."""

    def __init__(self, space: spaces.Discrete) -> None:
        self.n = int(space.n) if isinstance(space, spaces.Discrete) else 2
        self.shape = space.shape or ()

    def act(self, observations: Any, state: Any, mask: Any, explore: bool, rng: np.random.Generator) -> Any:
        actions = rng.integers(0, self.n, (len(observations[0]), *self.shape))
        return actions, state, {"dist": np.zeros((len(actions), self.n), np.float32)}

    def to_env(self, actions: Any) -> Any:
        return actions

    def initial_state(self, lanes: int) -> dict[str, Any]:
        return {}


def collected(group: EnvGroup, steps: int, complete: bool = False) -> Any:
    return group.collect(Drawing(group.vector.action_space), steps, True, 1, complete)  # type: ignore[arg-type]


@given(st.integers(1, 300), st.integers(1, 20))
def test_every_environment_is_in_one_group(num_envs: int, num_groups: int) -> None:
    sizes = split_envs(num_envs, num_groups)
    assert sum(sizes) == num_envs
    assert len(sizes) == min(num_envs, num_groups)
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "differences" in name else ()) for name in VECTORS]
)
@pytest.mark.parametrize("complete", [False, True])
def test_a_group_is_rebuilt_from_its_fragments(name: str, complete: bool) -> None:
    spec = VECTORS[name]
    whole = EnvGroup(make_vector(spec, 3), 2, seed=5)
    state = GroupState(3)
    for _ in range(4):
        fragment = collected(whole, 7, complete)
        state = state.advanced(fragment, fragment.actions, complete)
    rebuilt = EnvGroup(make_vector(spec, 3), 2, 5, state)
    for _ in range(4):
        ours, theirs = collected(rebuilt, 7, complete), collected(whole, 7, complete)
        for field in ("actions", "rewards", "terminated", "truncated", "valid", "episode_returns", "episodes"):
            assert np.array_equal(getattr(ours, field), getattr(theirs, field)), field
        assert all(np.array_equal(a, b) for a, b in zip(ours.observations, theirs.observations, strict=True))


def test_a_fragment_tells_the_truth_about_its_episodes() -> None:
    group = EnvGroup(make_vector(VECTORS["Python"], 3), 0, seed=0)
    fragments = [collected(group, 25) for _ in range(3)]
    rewards = np.concatenate([f.rewards for f in fragments])
    terminated = np.concatenate([f.terminated for f in fragments])
    truncated = np.concatenate([f.truncated for f in fragments])
    starts = np.concatenate([f.episode_start for f in fragments])
    ended = terminated | truncated
    assert starts[0].all()
    assert np.array_equal(starts[1:], ended[:-1])  # an episode starts right after one has ended
    returns, lengths = [], []
    for t, lane in np.argwhere(ended):
        first = int(np.flatnonzero(starts[: t + 1, lane])[-1])
        returns.append(rewards[first : t + 1, lane].sum())
        lengths.append(t + 1 - first)
    assert np.concatenate([f.episode_returns for f in fragments]) == pytest.approx(returns)
    assert np.concatenate([f.episode_lengths for f in fragments]).tolist() == lengths
    assert max(lengths) == 12
    # The final observation of each truncated episode, and of no other, is kept.
    assert sum(len(f.final_steps) for f in fragments) == int((truncated & ~terminated).sum())
    for fragment in fragments:
        for (observation,), t, lane in zip(
            zip(*fragment.final_observations, strict=True), fragment.final_steps, fragment.final_lanes, strict=True
        ):
            assert fragment.truncated[t, lane]
            assert observation[1] == 1.0  # the walk's clock: its time is over


def test_whole_episodes_begin_and_end_in_their_fragment() -> None:
    group = EnvGroup(make_vector(VECTORS["Python"], 3), 0, seed=0)
    for _ in range(3):
        fragment = collected(group, 20, complete=True)
        assert fragment.episode_start[0].all()
        for lane in range(3):
            length = int(fragment.valid[:, lane].sum())
            assert length >= 20
            assert fragment.valid[:length, lane].all()
            assert (fragment.terminated | fragment.truncated)[length - 1, lane]
        assert fragment.episode_lengths.sum() == fragment.steps


# Probing and checking


def test_the_probe() -> None:
    assert not probe_env(EnvSpec("walk", probes.Walk)).inexact
    assert "two different episodes" in probe_env(EnvSpec("restless", probes.Restless)).inexact
    assert probe_env(EnvSpec("CartPole-v1")).is_native
    assert probe_env(EnvSpec("walk", probes.Walk, {"sleep": 0.002})).step_seconds >= 0.002


def test_auto_uses_workers_where_an_environment_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outplay.algorithms.resolution.count_cpus", lambda: 3)
    for env, sleep, expected in ((probes.Walk, 0.003, 3), ("CartPole-v1", None, 0)):
        config = {} if sleep is None else {"env_config": {"sleep": sleep}}
        with PPO(env=env, config=config) as trainer:
            assert trainer.num_workers == expected


@pytest.mark.parametrize(
    ("env", "config", "sentence"),
    [
        (probes.Old, {}, "derive it from gymnasium.Env"),
        (probes.Restless, {}, "draw all random numbers from self.np_random"),
        (probes.Flawed, {"flaw": "raises"}, "it raised RuntimeError: the gripper is stuck"),
        (
            probes.Flawed,
            {"flaw": "observation is nan"},
            "step() returned an observation[0] that is nan; every number that it returns must be finite (step 5)",
        ),
        (probes.Flawed, {"flaw": "reward is nan"}, "a reward is nan"),
        (probes.Flawed, {"flaw": "observation has another shape"}, "an observation of shape (3,)"),
        (
            probes.Flawed,
            {"flaw": "four values"},
            "step() must return (observation, reward, terminated, truncated, info)",
        ),
        (probes.Flawed, {"flaw": "reward is a list"}, "a reward must be a number, not list"),
        (probes.Flawed, {"flaw": "done is a number"}, "terminated must be True or False, not a float"),
        (probes.Flawed, {"flaw": "reset returns the observation alone"}, "reset() must return (observation, info)"),
    ],
)
def test_check_env_names_what_is_wrong(env: Any, config: dict[str, Any], sentence: str) -> None:
    found = list(check_env(EnvSpec("it", env, config)))
    assert any(kind == "problem" and sentence in text for kind, text in found), found


def test_check_env_finds_nothing_wrong_with_what_is_right() -> None:
    for spec in (EnvSpec("walk", probes.Walk), EnvSpec("CartPole-v1"), EnvSpec("nested", probes.Nested)):
        assert not [text for kind, text in check_env(spec) if kind == "problem"]


FLAWS = {
    "raises": r"environment '.*Flawed' raised in step\(\): RuntimeError: the gripper is stuck",
    "observation is nan": r"Flawed': step \d+ of an episode returned an observation\[0\] that is nan; every number",
    "reward is nan": r"Flawed': step \d+ of an episode returned a reward that is nan; .* \(EnvGroup 0, lane 0\)",
    "reward is infinite": r"Flawed': step \d+ of an episode returned a reward that is inf",
    "observation has another shape": r"Flawed': step\(\) returned an observation of shape \(3,\), but its",
    "four values": r"step\(\) must return \(observation, reward, terminated, truncated, info\), not a tuple of 4",
    "reward is a list": "a reward must be a number, not",
    "done is a number": "terminated must be True or False, not 1.5",
    "done is a text": "terminated must be True or False, not 'no'",
    "observation is None": "an observation ",
    "observation is ragged": "an observation that is a list and does not fit its space",
    "reset returns the observation alone": r"reset\(\) must return \(observation, info\), not a ndarray",
}


@pytest.mark.parametrize("flaw", FLAWS)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_flaw_that_shows_while_training_is_one_sentence(process_engine: None, flaw: str, num_workers: int) -> None:
    if num_workers and flaw not in ("raises", "reward is nan"):
        pytest.skip("what a worker raises arrives as it is: two cases show it")
    config = {
        "num_workers": num_workers,
        "num_envs": 4,
        "train_batch_size": 400,
        "env_config": {"flaw": flaw, "after": 60},
    }
    with pytest.raises(EnvError, match=FLAWS[flaw]) as caught, PPO(env=probes.Flawed, config=config) as trainer:
        trainer.train()
    assert "\n" not in str(caught.value)


def test_envpool(process_engine: None, caplog: pytest.LogCaptureFixture) -> None:
    """An extra that weighs 700 MB: tested where it is installed."""
    pytest.importorskip("envpool")
    results = []
    for num_workers in (0, 2):
        config = {"num_envs": 8, "train_batch_size": 256, "num_workers": num_workers}
        with PPO(env="envpool/CartPole-v1", config=config) as trainer:
            results.append([trainer.train()["episode_return_mean"] for _ in range(3)])
            assert trainer.evaluate()["episodes"] == 10
    assert results[0] == results[1]
    assert "EnvPool seeds its environments once" in caplog.text


def test_without_envpool_its_ids_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(EnvError, match=r"needs EnvPool: pip install 'outplay\[envpool\]'"):
        PPO(env="envpool/Pong-v5")


def test_a_choice_that_its_space_does_not_have_is_refused() -> None:
    with (
        PPO(env=probes.OutOfRange, config={"num_workers": 0}) as trainer,
        pytest.raises(
            EnvError,
            match=r"OutOfRange': reset\(\) returned an observation\['switch'\] that is 2, which is not in",
        ),
    ):
        trainer.train()


def test_whole_episodes_of_something_endless_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outplay.envs.group.LONGEST_EPISODE", 500)
    config = {"num_workers": 0, "num_envs": 2, "env_config": {"length": 10**9}, "train_batch_size": 10}

    class Still(probes.Walk):
        def step(self, action: Any) -> Any:
            return self._observe(), 0.0, False, False, {}

    with PG(env=Still, config=config) as trainer, pytest.raises(EnvError, match="set max_episode_steps"):
        trainer.train()
