"""What is said about environments that are not as they should be, and what is adapted."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

from outplay import PPO, EnvError
from outplay.envs import EnvSpec, probe_env
from outplay.envs.check import check_env
from tests import probes

SMALL = {"num_envs": 4, "num_env_groups": 2, "num_workers": 0, "train_batch_size": 80, "seed": 3}


# Where a wrong number came from


class NotFinite(probes.Walk):
    """The third observation of every episode that begins far enough to the right is wrong in one place."""

    def __init__(self, at: int = 3) -> None:
        super().__init__(length=5)
        self.at = at
        self.observation_space = spaces.Dict({"camera": spaces.Box(-np.inf, np.inf, (2, 3), np.float32)})

    def _observe(self) -> Any:
        camera = np.zeros((2, 3), np.float32)
        if self.steps == self.at:
            camera[1, 2] = -np.inf
        return {"camera": camera}


@pytest.mark.parametrize(("at", "when"), [(0, r"reset\(\)"), (3, "step 3 of an episode"), (5, "step 5 of an episode")])
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_a_number_that_is_not_finite_is_found(at: int, when: str, batch_mode: str) -> None:
    """Also in the last observation of an episode that is cut off, and beyond the first Fragment of an episode."""
    config = {**SMALL, "env_config": {"at": at}, "batch_mode": batch_mode, "rollout_fragment_length": 2}
    said = rf"NotFinite': {when} returned an observation\['camera'\]\[1, 2\] that is -inf; .* \(EnvGroup \d, lane \d\)"
    with pytest.raises(EnvError, match=said), PPO(env=NotFinite, config=config) as trainer:
        trainer.train()


def test_an_observation_that_is_given_is_named_in_the_same_way() -> None:
    with (
        PPO(env=probes.Walk, config=SMALL) as trainer,
        pytest.raises(EnvError, match=r"^observation\[1\] is nan"),
    ):
        trainer.compute_single_action(np.array([0.0, np.nan], np.float32))


# check-env


class Outside(probes.Walk):
    observation_space = spaces.Box(-0.5, 0.5, (2,), np.float32)


class NoReward(probes.Walk):
    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, None, *rest


class SlowReset(probes.Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        time.sleep(0.05)
        return super().reset(seed=seed)


def test_check_env_names_the_number_that_is_out_of_bounds_once() -> None:
    found = [text for kind, text in check_env(EnvSpec("it", Outside)) if kind == "problem"]
    assert len(found) == 1
    assert "outside its bounds -0.5 to 0.5" in found[0]
    assert "returned an observation[" in found[0]


def test_check_env_blames_the_reward() -> None:
    found = [text for kind, text in check_env(EnvSpec("it", NoReward)) if kind == "problem"]
    assert "a reward must be a number, not None (step 1)" in found


def test_a_reset_does_not_count_as_a_step() -> None:
    probe = probe_env(EnvSpec("it", SlowReset))
    assert probe.reset_seconds >= 0.05
    assert probe.step_seconds < probe.reset_seconds / 2 < probe.pace_seconds * 500
    assert any("µs, a reset " in text for _, text in check_env(EnvSpec("it", SlowReset)))


# Factories


@pytest.mark.parametrize(
    "factory",
    [
        lambda cfg: probes.Walk(cfg["length"]),
        lambda cfg, /: probes.Walk(cfg["length"]),
        lambda cfg=None: probes.Walk(cfg["length"]),
        lambda length: probes.Walk(length),
        lambda length=2: probes.Walk(length),
        lambda length, sleep=0.0: probes.Walk(length, sleep),
        lambda **settings: probes.Walk(**settings),
    ],
)
def test_a_factory_gets_the_env_config_as_its_parameters_say(factory: Any) -> None:
    env: Any = EnvSpec("it", factory, {"length": 9}).make(render_mode=None).unwrapped
    assert env.length == 9


def test_what_a_factory_does_not_ask_for_it_does_not_get() -> None:
    def titled(render_mode: str | None = None) -> Any:
        env = probes.Walk()
        env.render_mode = render_mode
        return env

    assert EnvSpec("it", titled).make("rgb_array").unwrapped.render_mode == "rgb_array"
    assert EnvSpec("it", lambda length=7: probes.Walk(length)).make().unwrapped.length == 7  # type: ignore[attr-defined]
    with pytest.raises(EnvError, match="unexpected keyword argument 'size'"):
        EnvSpec("it", probes.Walk, {"size": 3}).make()


# Wrappers that normalise


def normalised(reward: bool = False) -> Any:
    env: Any = NormalizeObservation(probes.Walk())
    return NormalizeReward(env) if reward else env


@pytest.mark.parametrize("reward", [False, True])
def test_wrappers_with_running_statistics_are_recognised(reward: bool, caplog: pytest.LogCaptureFixture) -> None:
    config = {**SMALL, "env_config": {"reward": reward}}
    with PPO(env=normalised, config=config):
        pass
    said = [record.message for record in caplog.records]
    assert len(said) == 1
    assert "NormalizeObservation" in said[0]
    assert ("NormalizeReward" in said[0]) == reward
    assert "are reset in every evaluation and resumed run" in said[0]
    assert "set normalize_observations: true" in said[0]
    assert "two different episodes" not in said[0]
    found = list(check_env(EnvSpec("it", normalised, {"reward": reward})))
    assert any("set normalize_observations: true" in text for kind, text in found if kind == "problem")


def test_a_vector_with_such_a_wrapper_is_refused_with_the_same_advice() -> None:
    def vector() -> Any:
        return gymnasium.wrappers.vector.NormalizeObservation(gymnasium.make_vec("CartPole-v1", 2))

    with pytest.raises(EnvError, match=r"is a VectorEnv .*set normalize_observations: true"):
        EnvSpec("it", vector).make()


# Older and other interfaces


class GymWrapper:
    """As Gym's wrappers before 0.26: they pass everything on, whatever is inside."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **options: Any) -> Any:
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        return self.env.step(action)


class PassiveEnvChecker(GymWrapper):
    """The checker of `gym.make` knows types that numpy 2 does not have."""

    def step(self, action: Any) -> Any:
        raise AttributeError("module 'numpy' has no attribute 'bool8'")


class OrderEnforcing(GymWrapper):
    pass


class TimeLimit(GymWrapper):
    """That of Gym 0.26 takes five values for granted."""

    _max_episode_steps = 3

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info


def test_an_old_environment_made_by_gym_is_adapted() -> None:
    def made() -> Any:
        return TimeLimit(OrderEnforcing(PassiveEnvChecker(probes.Old())))

    def wrapped() -> Any:
        return GymWrapper(GymWrapper(probes.Old({"cut": True})))

    for factory, ends in ((made, 3), (wrapped, 5)):
        env = EnvSpec("old one", factory).make()
        assert np.array_equal(env.reset(seed=4)[0], env.reset(seed=4)[0])
        assert [env.step(1)[2:4] for _ in range(ends)] == [(False, False)] * (ends - 1) + [(False, True)]
        with PPO(env=factory, config=SMALL) as trainer:
            assert trainer.train()["episode_len_mean"] == ends
            assert not trainer.inexact


@pytest.mark.filterwarnings("ignore")
def test_gym_itself() -> None:
    """Tested where it is installed."""
    gym = pytest.importorskip("gym")

    class OldWalk(gym.Env):  # type: ignore[name-defined, misc]
        observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def seed(self, seed: int | None = None) -> None:
            self.rng = np.random.default_rng(seed)

        def reset(self) -> Any:
            return self.rng.uniform(-1, 1, 1).astype(np.float32)

        def step(self, action: Any) -> Any:
            return self.rng.uniform(-1, 1, 1).astype(np.float32), 1.0, False, {}

    gym.register("OldWalk-v0", entry_point=OldWalk, max_episode_steps=7)
    with PPO(env=lambda cfg: gym.make("OldWalk-v0", **cfg), config=SMALL) as trainer:
        assert trainer.train()["episode_len_mean"] == 7
        assert not trainer.inexact


class RawParallel:
    """The form of PettingZoo's environments."""

    possible_agents = ("left", "right")

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (1,))

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return {}, {}

    def step(self, actions: Any) -> Any:
        return {}, {}, {}, {}, {}


def test_pettingzoos_environments_are_refused_by_name() -> None:
    with pytest.raises(EnvError, match=r"PettingZoo's RawParallel, which has several agents; make it a gymnasium.Env"):
        PPO(env=RawParallel)


@pytest.mark.filterwarnings("ignore")
def test_pettingzoo_itself() -> None:
    """Tested where it is installed."""
    pytest.importorskip("pettingzoo")
    from pettingzoo.classic import rps_v2

    for make in (rps_v2.env, rps_v2.raw_env, rps_v2.parallel_env):
        with pytest.raises(EnvError, match="PettingZoo's"):
            PPO(env=lambda env_config, make=make: make())
