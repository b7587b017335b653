"""Recurrent networks: acting and learning agree, gradients stay inside an episode, and memory is learned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outplay import A2C, DQN, PG, PPO, ConfigError
from outplay.algorithms.dqn import DQNLearner
from outplay.envs.examples import RepeatAfterMe
from outplay.fragments import Batch, join
from outplay.groups import ModelConfig
from outplay.learning.onpolicy import OnPolicyLearner
from outplay.policies.recurrent import Attention, Core, Memory, make_core
from tests import probes
from tests.policies.test_recurrent_and_masked import Maze, watched

Array = np.ndarray
CORES: dict[str, dict[str, Any]] = {
    "lstm": {"use_lstm": True, "lstm_cell_size": 6},
    "gru": {"use_gru": True, "lstm_cell_size": 6},
    "attention": {"use_attention": True, "attention_memory_inference": 4, "attention_num_transformer_units": 2},
}
PREVIOUS = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
SMALL: dict[str, Any] = {
    "num_workers": 0,
    "num_envs": 4,
    "num_env_groups": 2,
    "train_batch_size": 80,
    "rollout_fragment_length": 20,
    "seed": 3,
}


def batches(trainer: Any, iterations: int) -> Iterator[Batch]:
    """The Batches of the next iterations, each before the learner has seen it."""
    seen = watched(trainer)
    for _ in range(iterations):
        trainer.train()
    groups = trainer.config.num_groups
    yield from (join(seen[i : i + groups]) for i in range(0, len(seen), groups))


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    ("algorithm", "env", "config"),
    [
        (PPO, Maze, {"model": PREVIOUS}),
        (A2C, "CartPole-v1", {"max_episode_steps": 7}),
        (PG, probes.Walk, {"env_config": {"length": 30}, "model": PREVIOUS}),
    ],
)
def test_learning_computes_what_acting_computed(core: str, algorithm: Any, env: Any, config: dict[str, Any]) -> None:
    """On the rows of a Batch, with its recorded states, the network gives the recorded outputs: at learning rate 0."""
    model = {**CORES[core], **config.get("model", {}), "max_seq_len": 6}
    config = {**SMALL, **config, "model": model, "lr": 0.0}
    if algorithm is not PG:
        config |= {"normalize_values": False}
    else:
        del config["rollout_fragment_length"]
    with algorithm(env=env, config=config) as trainer:
        for batch in batches(trainer, 3):
            learner: OnPolicyLearner[Any] = trainer.learner
            observations, mask, memory, take = learner.inputs(batch)
            with torch.no_grad():
                params = learner.actor_critic.policy(observations, memory).numpy()
            recorded = take(batch.extras["dist"])
            allowed = np.ones_like(recorded, bool) if mask is None else mask.numpy()
            assert np.allclose(params[allowed], recorded[allowed], atol=1e-5)
            if "value" in batch.extras:
                with torch.no_grad():
                    values = learner.actor_critic.value(observations, memory).numpy()
                assert np.allclose(values, take(batch.extras["value"]), atol=1e-4)


@pytest.mark.parametrize("core", CORES)
def test_a_truncated_episode_bootstraps_from_the_state_before_its_final_observation(core: str) -> None:
    """The value of a final observation is that of one more step of the same sequence."""
    config = {**SMALL, "model": {**CORES[core], "max_seq_len": 20}, "max_episode_steps": 7, "lr": 0.0}
    with A2C(env="CartPole-v1", config={**config, "normalize_values": False}) as trainer:
        batch = next(batches(trainer, 1))
        learner: OnPolicyLearner[Any] = trainer.learner
        given = learner.values_of(batch.final_observations, batch.final_states)
        assert len(given) >= 4
        for i, (step, lane) in enumerate(zip(batch.final_steps, batch.final_lanes, strict=True)):
            begin = int(np.flatnonzero(batch.episode_start[: step + 1, lane])[-1])
            observations = np.concatenate(
                [batch.observations[0][begin : step + 1, lane], batch.final_observations[0][i][None]]
            )
            memory = trainer.policy.memory(trainer.policy.initial_state(1))
            memory.lengths = np.array([len(observations)])
            with torch.no_grad():
                values = learner.actor_critic.value(learner.tensors((observations,)), memory)
            assert np.isclose(given[i], float(values[-1]), atol=1e-4)


@pytest.mark.parametrize("core", CORES)
def test_gradients_do_not_flow_across_episodes(core: str) -> None:
    config = {**SMALL, "model": {**CORES[core], "max_seq_len": 20}, "max_episode_steps": 7}
    with A2C(env="CartPole-v1", config=config) as trainer:
        batch = next(batches(trainer, 1))
        learner: OnPolicyLearner[Any] = trainer.learner
        (observations,), _, memory, take = learner.inputs(batch)
        observations.requires_grad_()
        params = learner.actor_critic.policy((observations,), memory)
        lanes, steps = take(np.broadcast_to(np.arange(4), batch.rewards.shape)), take(_times(batch))
        episodes = take(np.cumsum(batch.episode_start, 0))
        row = int(np.flatnonzero((lanes == 1) & (episodes == 2) & (steps == 10))[0])
        (gradient,) = torch.autograd.grad(params[row].sum(), observations)
        reached = set(np.flatnonzero(gradient.abs().sum(-1).numpy()).tolist())
        assert reached  # including earlier steps of the same episode
        assert any(steps[r] < 10 for r in reached)
        assert all(lanes[r] == 1 and episodes[r] == 2 and steps[r] <= 10 for r in reached)


def _times(batch: Batch) -> Array:
    return np.broadcast_to(np.arange(len(batch.rewards))[:, None], batch.rewards.shape)


def make(core: str, inputs: int = 3) -> Core:
    made = make_core(ModelConfig(**CORES[core]), inputs)
    assert made is not None
    made.initialize(torch.Generator().manual_seed(0))
    for parameter in made.parameters():  # biases, too
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(1))
    return made


def test_a_core_without_all_of_its_methods_cannot_be_made() -> None:
    class Stateless(Core):
        def shapes(self) -> dict[str, tuple[int, ...]]:
            return {}

    with pytest.raises(TypeError, match=r"abstract class Stateless .*forward.*initialize"):
        Stateless()  # type: ignore[abstract]


@given(st.sampled_from(list(CORES)), st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_sequences_of_any_lengths_are_those_of_single_steps(core: str, lengths: list[int], seed: int) -> None:
    """Padding has no influence, and the state carries everything from one step to the next."""
    network = make(core)
    rows = torch.randn(sum(lengths), 3, generator=torch.Generator().manual_seed(seed))
    state = {name: torch.zeros(len(lengths), *shape) for name, shape in network.shapes().items()}
    with torch.no_grad():
        together = network.run(rows, Memory(state, np.array(lengths)))
        begin = 0
        for s, length in enumerate(lengths):
            own = {name: tensor[s : s + 1] for name, tensor in state.items()}
            for t in range(begin, begin + length):
                memory = Memory(own)
                assert torch.allclose(network.run(rows[t : t + 1], memory)[0], together[t], atol=1e-5)
                own = memory.next_state
            begin += length


def test_attention_forgets_what_is_older_than_its_memory() -> None:
    network = make("attention")
    assert isinstance(network, Attention)
    rows = torch.randn(12, 3, requires_grad=True)
    state = {name: torch.zeros(1, *shape) for name, shape in network.shapes().items()}
    outputs = network.run(rows, Memory(state, np.array([12])))
    (gradient,) = torch.autograd.grad(outputs[11].sum(), rows)
    # Two layers, each of which sees 4 steps back.
    assert (gradient.abs().sum(-1) > 0).tolist() == [False] * 3 + [True] * 9


@pytest.mark.parametrize("core", CORES)
def test_single_actions_carry_the_state(core: str) -> None:
    with PPO(env=RepeatAfterMe, config={**SMALL, "model": {**CORES[core], **PREVIOUS}}) as trainer:
        state = trainer.get_policy().initial_state(1)
        first = {name: array.copy() for name, array in state.items()}
        outputs = []
        for _ in range(3):
            action, state, extras = trainer.compute_single_action(1, state, explore=False, prev_reward=0.0)
            assert action in (0, 1)
            outputs.append(extras["dist"])
        assert not np.array_equal(outputs[0], outputs[1])  # the same observation, another state
        again = trainer.compute_single_action(1, first, explore=False, prev_reward=0.0)[2]["dist"]
        assert np.array_equal(again, outputs[0])
        _, state = trainer.predict(np.array([0, 1]), trainer.get_policy().initial_state(2), prev_reward=[0.0, 1.0])
        assert set(state) == set(first)
        with pytest.raises(ConfigError, match=r"recurrent state \(.*\) does not fit"):
            trainer.compute_single_action(1, {"h": np.zeros((1, 2))})


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"use_lstm": True, "use_gru": True}, "use_lstm and use_gru exclude each other"),
        ({"use_attention": True, "vf_share_layers": False}, "policy and value share their layers"),
        ({"lstm_use_prev_action": True}, "need use_lstm, use_gru or use_attention"),
        ({"lstm_cell_size": 128}, "lstm_cell_size needs use_lstm or use_gru: without it, it has no effect"),
        ({"max_seq_len": 5}, "max_seq_len needs use_lstm, use_gru, use_attention or a recurrent custom_model"),
        ({"attention_dim": 5}, "attention_dim needs use_attention"),
        ({"custom_model_config": {"size": 3}}, "custom_model_config needs a custom_model"),
    ],
)
def test_settings_that_exclude_each_other(model: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PPO(env=RepeatAfterMe, config={**SMALL, "model": model})


def test_a_core_that_is_switched_off_may_have_settings() -> None:
    with PPO(env=RepeatAfterMe, config={**SMALL, "model": {"use_lstm": False, "lstm_cell_size": 8}}) as trainer:
        config = {**trainer.get_config(), "env": RepeatAfterMe}  # all settings: none of them is refused
    PPO(config=config)


def learned(model: dict[str, Any], algorithm: Any = PPO, steps: int = 12_000, **config: Any) -> float:
    """The mean return of the last episodes on RepeatAfterMe, where 0 is guessing and 99 is the best."""
    own = {"num_workers": 0, "gamma": 0.5, "lr": 2e-3, "metrics_num_episodes": 20, "seed": 1, **config}
    with algorithm(env=RepeatAfterMe, config={**own, "model": {"fcnet_hiddens": [32], **model}}) as trainer:
        while trainer.timesteps < steps:
            result = trainer.train()
        return float(result["episode_return_mean"])


def test_an_lstm_learns_what_an_mlp_cannot() -> None:
    assert learned({"use_lstm": True, "lstm_cell_size": 32}) > 60
    assert learned({}) < 20


@pytest.mark.slow
@pytest.mark.parametrize(("core", "algorithm"), [("gru", PPO), ("attention", PPO), ("lstm", A2C), ("lstm", PG)])
def test_every_core_and_on_policy_algorithm_learns_to_remember(core: str, algorithm: Any) -> None:
    model = {**CORES[core], "lstm_cell_size": 32}
    lr = 5e-4 if core == "attention" else 2e-3
    assert learned(model, algorithm, 40_000 if algorithm is PPO else 150_000, lr=lr) > 60


def test_an_algorithm_that_learns_from_transitions_refuses_recurrent_networks() -> None:
    class Transitions(DQNLearner):
        supports_recurrence = False

    class Own(DQN):
        Learner = Transitions

    with pytest.raises(ConfigError, match="Own cannot train recurrent networks; use another algorithm"):
        Own(env=RepeatAfterMe, config={"num_workers": 0, "model": {"use_lstm": True}})
