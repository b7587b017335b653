"""Evaluations: beside training, and in an environment of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outplay
from outplay import PPO, CheckpointError, ConfigError, EnvError
from outplay.algorithms import iteration
from tests import probes

SMALL: dict[str, Any] = {
    "num_envs": 4, "train_batch_size": 40, "sgd_minibatch_size": 20, "num_sgd_iter": 1, "num_workers": 0, "seed": 5,
    "model": {"fcnet_hiddens": [8]},
}  # fmt: skip
BESIDE: dict[str, Any] = {
    "evaluation_interval": 2, "evaluation_duration": 15, "evaluation_num_workers": 1,
    "evaluation_parallel_to_training": True,
}  # fmt: skip
LENGTH = {"env_config": {"length": 12}}


def make(**more: Any) -> PPO:
    return PPO(env=probes.Walk, config={**SMALL, **LENGTH, **BESIDE, **more})


def evaluations(trainer: PPO, iterations: int) -> dict[int, dict[str, Any]]:
    """The evaluations that the next iterations report, by iteration."""
    results = [trainer.train() for _ in range(iterations)]
    return {result["training_iteration"]: result["evaluation"] for result in results if "evaluation" in result}


@pytest.fixture(scope="module", autouse=True)
def inline_engine() -> Iterator[None]:
    """Quick: the workers are in this process. test_evaluation_placement.py has the other engines."""
    outplay.init("inline", num_cpus=2)
    yield
    outplay.shutdown()


@pytest.fixture(scope="module")
def sequential() -> tuple[dict[int, dict[str, Any]], bytes]:
    """What every placement must give: evaluations in the main process, and the weights at the end."""
    with make(evaluation_parallel_to_training=False, evaluation_num_workers=0) as trainer:
        return evaluations(trainer, 6), trainer.policy.flat.numpy().tobytes()


def later(found: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Sequential evaluations as they are reported beside training: one interval later, with their iteration."""
    return {number + 2: {**metrics, "iteration": number} for number, metrics in found.items() if number < 6}


@pytest.mark.parametrize("unit", ["episodes", "timesteps"])
def test_a_checkpoint_has_the_evaluation_that_is_not_reported_yet(tmp_path: Path, unit: str) -> None:
    more = {"evaluation_duration_unit": unit, "evaluation_duration": 33}
    with make(**more) as whole:
        found = evaluations(whole, 6)
        weights = whole.policy.flat.numpy().tobytes()
    with make(**more) as first:
        evaluations(first, 3)
        path = first.save(tmp_path)
    with make(**more) as second:
        second.restore(path)
        assert evaluations(second, 3) == found
        assert second.policy.flat.numpy().tobytes() == weights
    with make(evaluation_parallel_to_training=False, **more) as third:  # it evaluates iteration 4 itself
        third.restore(path)
        assert evaluations(third, 1) == {4: {key: v for key, v in found[6].items() if key != "iteration"}}


@pytest.mark.parametrize("at", [3, 4])
def test_an_iteration_that_is_rolled_back_keeps_the_evaluation(
    monkeypatch: pytest.MonkeyPatch, sequential: tuple[dict[int, Any], bytes], at: int
) -> None:
    """At iteration 4, the evaluation of iteration 2 has been taken, and that of iteration 4 has begun."""
    with make() as trainer:
        evaluations(trainer, at - 1)

        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(iteration.curriculum, "update", interrupted)
            with pytest.raises(KeyboardInterrupt):
                trainer.train()
        assert evaluations(trainer, 6 - trainer.iteration) == later(sequential[0])
        trainer.stop()
        assert trainer.policy.flat.numpy().tobytes() == sequential[1]


def test_a_stopped_trainer_reports_it_later(sequential: tuple[dict[int, Any], bytes]) -> None:
    with make() as trainer:
        evaluations(trainer, 3)
        trainer.stop()
        assert evaluations(trainer, 1)[4] == later(sequential[0])[4]


def test_an_evaluation_in_between_does_not_change_it(sequential: tuple[dict[int, Any], bytes]) -> None:
    with make() as trainer:
        evaluations(trainer, 2)
        assert trainer.evaluate() == sequential[0][2]
        assert evaluations(trainer, 4) == later(sequential[0])


def test_an_evaluation_that_fails_can_be_saved_and_fails_where_it_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flawed = {"env": probes.Flawed, "env_config": {"flaw": "raises", "after": 1100}}  # after the probe
    duration = {"evaluation_duration": 1500, "evaluation_duration_unit": "timesteps"}
    with make(evaluation_config=flawed, **duration) as trainer:
        evaluations(trainer, 3)
        path = trainer.save(tmp_path)
        assert "the evaluation of iteration 2 failed: environment " in caplog.text
        with pytest.raises(EnvError, match="gripper"):
            trainer.train()
        assert trainer.iteration == 3
    config = {"evaluation_config": {}}
    with PPO.from_checkpoint(path, env=probes.Walk, config=config) as again:
        assert evaluations(again, 3)[6]["iteration"] == 4


# evaluation_config


def test_the_environment_of_evaluations_has_arguments_of_its_own() -> None:
    own = {"env_config": {"length": 3}, "explore": True}
    with make(evaluation_parallel_to_training=False, evaluation_config=own) as trainer:
        assert trainer.evaluate()["episode_len_mean"] == 3
        assert trainer.config.env_config == {"length": 12}
        assert trainer.get_config()["evaluation_explore"] is True
        trainer.train()
        trainer.train()
        assert set(trainer.last_result["episode_lengths"]) == {12}


def test_another_environment_of_evaluations(tmp_path: Path) -> None:
    class Other(probes.Walk):
        pass

    config = {**SMALL, "evaluation_config": {"env": Other, "max_episode_steps": 2}, "env_config": {"length": 12}}
    with PPO(env=probes.Walk, config=config) as trainer:
        assert trainer.evaluation_env.spec.name.endswith("Other")
        assert trainer.evaluate()["episode_len_mean"] == 2


def test_what_a_checkpoint_names_is_not_imported_unless_it_is_trusted(tmp_path: Path) -> None:
    own = {"env": "tests.probes:Crashing", "env_config": {"folder": str(tmp_path)}, "max_episode_steps": 4}
    with PPO(env=probes.Walk, config={**SMALL, "evaluation_config": own}) as trainer:
        path = trainer.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"Crashing', which would be imported.*evaluation_config in"):
        PPO.from_checkpoint(path, env=probes.Walk)
    for repeated in ({"trust": True}, {"config": {"evaluation_config": own}}):
        with PPO.from_checkpoint(path, env=probes.Walk, **repeated) as again:
            assert again.evaluate()["episode_len_mean"] == 4


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"evaluation_config": {"lr": 1}}, "evaluation_config: 'lr' is not a setting of evaluations; it takes env, "),
        ({"evaluation_config": {"explor": True}}, "evaluation_config: 'explor' is not .* Did you mean 'explore'"),
        ({"evaluation_config": {"frame_stack": 0}}, "evaluation_config.frame_stack must be an integer"),
        (
            {"evaluation_config": {"env": "Pendulum-v1"}},
            "the observation space of 'Pendulum-v1' is Box.* in evaluations",
        ),
        ({"evaluation_config": {"frame_stack": 2}}, "the observation space of 'CartPole-v1' is Box"),
        ({"evaluation_config": {"fire_on_reset": True}}, "fire_on_reset is only for ALE"),
        (
            {"evaluation_config": {"explore": True}, "evaluation_explore": False},
            "evaluation_explore is False, but evaluation_config.explore is True",
        ),
        (
            {"evaluation_parallel_to_training": True, "evaluation_interval": 1},
            "so evaluation_num_workers must be at least 1",
        ),
        (
            {"evaluation_parallel_to_training": True, "evaluation_num_workers": 1},
            "evaluation_parallel_to_training needs evaluation_interval",
        ),
        ({"record_env": True}, "record_env needs evaluation_interval"),
        ({"render_env": True}, "render_env needs evaluation_interval"),
    ],
)
def test_mistakes_are_one_sentence_before_training(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        PPO(env="CartPole-v1", config=config)
    assert "\n" not in str(caught.value)
