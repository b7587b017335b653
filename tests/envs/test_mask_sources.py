"""Where masks come from: `action_masks()`, an observation, an info; recognised with no custom model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from outplay import A2C, DQN, PG, PPO, EnvError
from outplay.envs import EnvSpec, make_vector, probe_env
from outplay.envs.check import check_env
from outplay.masks import MaskPart, checked_mask, mask_key, sample_allowed, with_mask_part
from outplay.testing import VectorConformance
from outplay.testing.probes import Forbidding
from tests.cli.common import Outcome
from tests.cli.conftest import cli  # noqa: F401 - a fixture

SMALL: dict[str, Any] = {"num_workers": 0, "num_envs": 4, "train_batch_size": 64, "model": {"fcnet_hiddens": [8]}}
INNER = spaces.Box(-1, 1, (2,), np.float32)


class TestInObservations(VectorConformance):
    env = Forbidding


class TestInInfos(VectorConformance):
    env = Forbidding
    env_config = {"masks": "info", "several": True}


MASKS: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "Box of integers": (spaces.Discrete(3), spaces.Box(0, 1, (3,), np.int8)),
    "Box of floats": (spaces.Discrete(3, start=-1), spaces.Box(0.0, 1.0, (3,))),
    "Box of booleans": (spaces.Discrete(3), spaces.Box(0, 1, (3,), np.bool_)),
    "MultiBinary": (spaces.Discrete(3), spaces.MultiBinary(3)),
    "MultiDiscrete": (spaces.Discrete(3), spaces.MultiDiscrete([2, 2, 2])),
    "concatenated": (spaces.MultiDiscrete([3, 2]), spaces.MultiBinary(5)),
    "by part": (spaces.MultiDiscrete([3, 2]), spaces.Tuple([spaces.MultiBinary(3), spaces.MultiBinary(2)])),
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize(("inner", "outer"), [("observation", "action_mask"), ("obs", "action_masks")])
def test_a_mask_in_an_observation_is_recognised(kind: str, inner: str, outer: str) -> None:
    actions, mask = MASKS[kind]
    space, problem = with_mask_part(spaces.Dict({inner: INNER, outer: mask}), actions)
    assert not problem
    assert mask_key(space) == outer
    assert isinstance(space, spaces.Dict)
    assert isinstance(space.spaces[outer], MaskPart)
    assert space.spaces[inner] is INNER


NO_MASKS: dict[str, tuple[spaces.Space[Any], spaces.Space[Any], str]] = {
    "size": (spaces.Discrete(3), spaces.MultiBinary(4), "needs 3 values of 0 and 1"),
    "shape": (spaces.Discrete(4), spaces.MultiBinary((2, 2)), "needs 4 values of 0 and 1"),
    "bounds": (spaces.Discrete(3), spaces.Box(-1, 1, (3,)), "needs 3 values of 0 and 1"),
    "choices": (spaces.Discrete(2), spaces.MultiDiscrete([2, 3]), "needs 2 values of 0 and 1"),
    "actions": (spaces.Box(-1, 1, (3,)), spaces.MultiBinary(3), "masks need a Discrete or MultiDiscrete action space"),
}


@pytest.mark.parametrize("kind", NO_MASKS)
def test_what_does_not_fit_the_actions_is_no_mask_and_told(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    actions, mask, sentence = NO_MASKS[kind]
    whole = spaces.Dict({"observation": INNER, "action_mask": mask})
    space, problem = with_mask_part(whole, actions)
    assert space is whole
    assert sentence in problem

    class Env(gymnasium.Env[Any, Any]):
        observation_space, action_space = whole, actions

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.observation_space.seed(seed)
            return self.observation_space.sample(), {}

        def step(self, action: Any) -> Any:
            return self.observation_space.sample(), 0.0, True, False, {}

    with PPO(env=Env, config=SMALL) as trainer:
        assert len(trainer.policy.leaves) == 2
    assert len([r for r in caplog.records if "its actions are not masked: " in r.message]) == 1


def test_two_keys_are_ambiguous() -> None:
    mask = spaces.MultiBinary(3)
    _, problem = with_mask_part(spaces.Dict({"a": INNER, "action_mask": mask, "action_masks": mask}), mask)
    assert problem == "the observation has both 'action_mask' and 'action_masks'"
    with pytest.raises(EnvError, match="has an action mask and nothing else; add an 'observation' beside it"):
        with_mask_part(spaces.Dict({"action_mask": mask}), spaces.Discrete(3))


@pytest.mark.parametrize("masks", ["observation", "info", "method"])
@pytest.mark.parametrize("several", [False, True])
def test_the_mask_of_each_source(masks: str, several: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The network sees the inner observation alone; and one line says where the mask comes from."""
    config = {**SMALL, "env_config": {"masks": masks, "several": several}, "log_level": "INFO"}
    source = "action_masks()" if masks == "method" else f"{masks}['action_mask']"
    with A2C(env=Forbidding, config=config) as trainer:
        assert trainer.probe.mask_sources == (source,)
        assert [leaf.shape for leaf in trainer.policy.leaves] == [(1,)]
        assert trainer.train()["episodes_this_iter"] > 0
        assert trainer.evaluate()["episode_len_mean"] == 4
    lines = [record.message for record in caplog.records if "mask" in record.message]
    assert lines == [f"environment 'outplay.testing.probes:Forbidding': {source} is its action mask"]
    found = list(check_env(EnvSpec("it", Forbidding, config["env_config"])))
    assert ("ok", f"it has {source}: the policy takes only allowed actions") in found
    assert not [text for kind, text in found if kind == "problem"]


CORES: dict[str, dict[str, Any]] = {
    "LSTM": {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5},
    "GRU": {"use_gru": True, "max_seq_len": 5},
}


@pytest.mark.parametrize(("algorithm", "core"), [(PPO, "LSTM"), (A2C, "GRU"), (PG, "LSTM")])
@pytest.mark.parametrize("several", [False, True])
def test_masks_and_recurrent_networks(algorithm: type[Any], core: str, several: bool) -> None:
    """With a learning rate of 0, the networks that learn and act are equal: so are their masked distributions."""
    config = {**SMALL, "env_config": {"several": several}, "lr": 0.0, "model": CORES[core]}
    with algorithm(env=Forbidding, config=config) as trainer:
        result = trainer.train()
        assert 0 < result["learner"]["entropy"] < np.log(6 if several else 4)
        assert abs(result["learner"].get("kl", 0.0)) < 1e-6
        observation, _ = Forbidding(several=several).reset(seed=0)
        state = trainer.get_policy().initial_state(1)
        for _ in range(5):
            action, state, _ = trainer.compute_single_action(observation, state)
            masks = observation["action_mask"] if several else [observation["action_mask"]]
            assert all(mask[choice] for mask, choice in zip(masks, np.atleast_1d(action), strict=True))


def test_stacked_observations_have_the_newest_mask() -> None:
    vector = make_vector(EnvSpec("it", Forbidding, frame_stack=3), 2)
    observations = vector.reset(np.ones(2, bool), [0, 1])
    rng = np.random.default_rng(0)
    assert observations[0].shape == (2, 3, 1)
    for _ in range(3):
        assert vector.action_masks is not None
        assert np.array_equal(vector.action_masks, [env.unwrapped.allowed for env in vector.envs])  # type: ignore[attr-defined]
        vector.step(np.array([sample_allowed(vector.action_space, mask, rng) for mask in vector.action_masks]))


class Both(Forbidding):
    """Two sources: the method is used, and it forbids more."""

    def action_masks(self) -> Any:  # type: ignore[override]
        return np.arange(4) == np.argmax(self.allowed)

    def step(self, action: Any) -> Any:
        assert self.action_masks()[action]
        return super().step(action)


def test_of_two_sources_one_is_used_and_told(caplog: pytest.LogCaptureFixture) -> None:
    for masks in ("observation", "info"):
        caplog.clear()
        with PPO(env=Both, config={**SMALL, "env_config": {"masks": masks}}) as trainer:
            trainer.train()
        assert [record.message.split(": ", 1)[1] for record in caplog.records if "mask" in record.message] == [
            f"it has action masks in action_masks() and {masks}['action_mask']; action_masks() is used"
        ]


class Flawed(Forbidding):
    """All is forbidden after two steps; or the info has no mask then."""

    def __init__(self, masks: str, truncates: bool = False, forgets: bool = False) -> None:
        super().__init__(masks, truncates=truncates)
        self.forgets = forgets

    def _observe(self) -> Any:
        observation, info = super()._observe()
        if self.steps == 2:
            self.allowed[:] = 0
            return observation, {} if self.forgets else info
        return observation, info


@pytest.mark.parametrize("algorithm", [PPO, DQN])
@pytest.mark.parametrize("masks", ["observation", "info", "method"])
def test_a_mask_of_zeros_is_one_sentence(masks: str, algorithm: type[Any]) -> None:
    place = "action_masks() returned" if masks == "method" else f"{masks}['action_mask'] of step() is"
    with pytest.raises(EnvError) as caught:
        algorithm(env=Flawed, config={**SMALL, "env_config": {"masks": masks}})
    assert str(caught.value) == (
        f"environment 'tests.envs.test_mask_sources:Flawed': {place} a mask that allows no action; allow at least one, "
        "or end the episode a step earlier (environment 0, after step 2 of its episode)"
    )


def test_an_info_that_lacks_its_mask() -> None:
    with pytest.raises(
        EnvError, match=r"step\(\) returned an info without 'action_mask', .* \(environment 0, after step 2"
    ):
        PPO(env=Flawed, config={**SMALL, "env_config": {"masks": "info", "forgets": True}})


class Short(Flawed):
    """Ends by truncation after two steps, when nothing is allowed."""

    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, False, self.steps == 2, info


def test_a_truncated_episode_may_allow_nothing() -> None:
    with DQN(env=Short, config={"num_workers": 0, "num_envs": 4, "env_config": {"masks": "info"}}) as trainer:
        assert trainer.train()["episode_len_mean"] == 2


def test_taxi_has_masks_in_its_infos() -> None:
    with DQN(env="Taxi-v4", config={"num_workers": 0, "num_envs": 2, "learning_starts": 64}) as trainer:
        assert trainer.probe.mask_sources == ("info['action_mask']",)
        trainer.train()
        assert trainer.learner.updates > 0


def test_observations_as_the_environment_gives_them() -> None:
    for several, algorithm in ((False, DQN), (True, PPO), (False, A2C)):
        env = Forbidding(several=several)
        with algorithm(env=Forbidding, config={**SMALL, "env_config": {"several": several}}) as trainer:
            for seed in range(30):
                observation, _ = env.reset(seed=seed)
                env.step(trainer.compute_single_action(observation))
            observations = {seed: env.reset(seed=seed)[0] for seed in range(5)}
            actions = trainer.compute_actions(observations)
            seen = gymnasium.vector.utils.batch_space(env.observation_space, 5)
            empty = gymnasium.vector.utils.create_empty_array(env.observation_space, 5)
            batch = gymnasium.vector.utils.concatenate(env.observation_space, list(observations.values()), empty)
            assert seen.contains(batch)
            predicted, _ = trainer.predict(batch)
            for seed in range(5):
                for action in (actions[seed], predicted[seed], trainer.predict(observations[seed])[0]):
                    env.reset(seed=seed)
                    env.step(action)
            only = trainer.compute_single_action(observation, mask=[0, 1, 0, 0, 1] if several else [0, 1, 0, 0])
            assert np.array_equal(only, [1, 1] if several else 1)
            with pytest.raises(
                EnvError, match=r"^the observation has no observation\['action_mask'\], its action mask"
            ):
                trainer.compute_single_action({"observation": observation["observation"]})


def test_any_random_mask_is_kept() -> None:
    """For PPO's and DQN's policies, exploring or not: no forbidden action over random masks of random sizes."""
    rng = np.random.default_rng(0)
    for actions in (2, 5, 17):
        space = spaces.Discrete(actions)
        for algorithm in (PPO, DQN):

            class Env(Forbidding):
                observation_space, action_space = INNER, space  # type: ignore[assignment]

                def __init__(self) -> None:
                    pass

                def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
                    return np.zeros(2, np.float32), {"action_mask": np.ones(self.action_space.n, bool)}  # type: ignore[attr-defined]

                def step(self, action: Any) -> Any:
                    return np.zeros(2, np.float32), 0.0, True, False, {}

            with algorithm(env=Env, config=SMALL) as trainer:
                policy = trainer.get_policy()
                policy.exploration = {"epsilon": 0.5} if algorithm is DQN else {}
                for explore in (True, False):
                    masks = rng.random((400, actions)) < rng.random((400, 1))
                    masks[np.arange(400), rng.integers(0, actions, 400)] = True
                    seen = (rng.normal(size=(400, 2)).astype(np.float32),)
                    taken, _, _ = policy.act(seen, {}, masks, explore, rng)
                    assert masks[np.arange(400), taken].all()


def test_masks_by_part_are_concatenated() -> None:
    for mask in (([1, 0, 1], [0, 1]), [np.array([1, 0, 1]), np.array([0, 1])], [1, 0, 1, 0, 1]):
        assert checked_mask(mask, [3, 2], "").tolist() == [True, False, True, False, True]
    with pytest.raises(EnvError, match="a mask that is a tuple, not an array"):
        checked_mask(([1, 0], [0, 1, 1]), [3, 2], "it is")


def test_a_dry_run_says_it(cli: Callable[..., Outcome], tmp_path: Path) -> None:  # noqa: F811
    code, out, _ = cli("train", "--env", "outplay.testing.probes:Forbidding", "--dry-run")
    assert code == 0
    assert (
        "# The action mask of outplay.testing.probes.Forbidding is observation['action_mask'] of its environment.\n"
        in out
    )
    assert not list(tmp_path.iterdir())


def test_the_probe_finds_no_masks_elsewhere() -> None:
    logging.getLogger("outplay").setLevel("WARNING")
    assert not probe_env(EnvSpec("CartPole-v1")).has_action_masks
