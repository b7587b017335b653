"""Acting outside training with recurrent networks: states, previous rewards, and agreement with evaluations."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from outplay import PPO, ConfigError

SMALL: dict[str, Any] = {"num_envs": 4, "train_batch_size": 80, "seed": 7, "num_workers": 0}
LSTM: dict[str, Any] = {"use_lstm": True, "lstm_cell_size": 6, "fcnet_hiddens": [8]}
PREVIOUS: dict[str, Any] = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}


class Noisy(gymnasium.Env[Any, Any]):
    """Random observations and rewards. An episode has 12 steps. `played` has the seed and the actions of each."""

    observation_space = gymnasium.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)
    played: ClassVar[list[tuple[int | None, list[int]]]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.actions: list[int] = []
        self.played.append((seed, self.actions))
        return self.np_random.normal(size=2).astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self.actions.append(int(action))
        observation, reward = self.np_random.normal(size=2).astype(np.float32), float(self.np_random.normal() * 9)
        return observation, reward, len(self.actions) == 12, False, {}


def recurrent(**model: Any) -> PPO:
    trainer = PPO(Noisy, config={**SMALL, "lr": 0.1, "model": {**LSTM, **model}})
    trainer.train()
    return trainer


def chosen(trainer: PPO, how: str, seed: int | None, with_reward: bool) -> list[int]:
    """The greedy actions of one episode."""
    env = Noisy()
    observation, _ = env.reset(seed=seed)
    state: Any = None if how == "predict" else trainer.get_policy().initial_state(1)
    reward, ended, action = 0.0, False, None
    while not ended:
        given = reward if with_reward else 0.0
        if how == "predict":
            action, state = trainer.predict(observation, state, deterministic=True, prev_reward=given)
        elif how == "compute_single_action":
            action, state, _ = trainer.compute_single_action(observation, state, explore=False, prev_reward=given)
        else:
            rewards = {"a": given}
            actions, state, _ = trainer.compute_actions({"a": observation}, state, explore=False, prev_reward=rewards)
            action = actions["a"]
        observation, reward, ended, _, _ = env.step(action)
    return env.actions


def test_a_loop_of_ones_own_acts_as_an_evaluation() -> None:
    with recurrent(**PREVIOUS) as trainer:
        Noisy.played.clear()
        trainer.evaluate(episodes=3)
        evaluated = [(seed, actions) for seed, actions in Noisy.played if len(actions) == 12]
        assert len(evaluated) == 3
        for how in ("predict", "compute_single_action", "compute_actions"):
            assert [chosen(trainer, how, seed, True) for seed, _ in evaluated] == [actions for _, actions in evaluated]
            assert [chosen(trainer, how, seed, False) for seed, _ in evaluated] != [actions for _, actions in evaluated]


def test_the_previous_reward_must_be_given_with_a_state() -> None:
    observation = np.zeros(2, np.float32)
    with recurrent(**PREVIOUS) as trainer:
        state = trainer.get_policy().initial_state(1)
        for call in (
            lambda: trainer.predict(observation, state),
            lambda: trainer.compute_single_action(observation, state),
            lambda: trainer.compute_actions({"a": observation}, state),
        ):
            with pytest.raises(ConfigError, match=r"the network gets the previous reward .* give prev_reward"):
                call()
        for wrong in ([1.0, 2.0], "much", float("nan")):
            with pytest.raises(ConfigError, match="prev_reward must be "):
                trainer.predict(observation, state, prev_reward=wrong)
        with pytest.raises(ConfigError, match="prev_reward must have the same names"):
            trainer.compute_actions({"a": observation}, state, prev_reward={"b": 1.0})
        assert trainer.compute_single_action(observation) in range(3)  # without a state: an episode begins
    with recurrent() as trainer:  # it does not get the reward
        trainer.compute_single_action(observation, trainer.get_policy().initial_state(1), prev_reward=1.0)


def test_an_episode_starts_without_a_previous_reward() -> None:
    with recurrent(**PREVIOUS) as trainer:
        batch, rewards = np.ones((2, 2), np.float32), np.array([5.0, 5.0])
        _, first = trainer.predict(batch, deterministic=True)
        _, after = trainer.predict(batch, first, [True, False], deterministic=True, prev_reward=rewards)
        assert first is not None
        assert after is not None
        assert np.array_equal(after["h"][0], first["h"][0])
        assert not np.array_equal(after["h"][1], first["h"][1])


def test_a_state_may_be_a_list_and_a_wrong_one_is_one_sentence() -> None:
    observation = np.ones(2, np.float32)
    with recurrent() as trainer:
        _, state, extras = trainer.compute_single_action(observation, [np.zeros(6), np.zeros(6)])  # as RLlib's
        expected = trainer.compute_single_action(observation, trainer.get_policy().initial_state(1))[2]
        assert np.array_equal(extras["dist"], expected["dist"])
        second = trainer.compute_single_action(observation, state)[2]
        assert np.array_equal(
            trainer.compute_single_action(observation, [state["h"], state["c"]])[2]["dist"], second["dist"]
        )
        two = {"a": observation, "b": observation}
        actions, states, _ = trainer.compute_actions(two, [np.zeros((2, 6)), np.zeros((2, 6))])
        assert set(actions) == {"a", "b"}
        assert states["h"].shape == (2, 6)
        for wrong in ([np.zeros(6)], [np.zeros(5), np.zeros(6)], np.zeros(6), [None, "a"], {"h": [[1], [1, 2]]}, False):
            with pytest.raises(ConfigError, match=r"this recurrent state \(h, c\) does not fit the policy: get_policy"):
                trainer.compute_single_action(observation, wrong)
