"""The setting `preprocessor`: a preprocessor in front of an agent's network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from outplay import DQN, PPO, SAC
from outplay.errors import ConfigError
from outplay.export import export_policy
from outplay.preprocessors import (
    ByKey,
    Chain,
    Crop,
    Grayscale,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    Preprocessor,
    Rescale,
    Resize,
    SimpleImputer,
    StandardScaler,
)
from outplay.runs.playing import SavedPolicy
from outplay.runs.run import Run
from outplay.spaces import leaves

SMALL: dict[str, Any] = {"num_workers": 0, "num_envs": 8, "num_env_groups": 1, "seed": 3}
ON_POLICY = {**SMALL, "train_batch_size": 64, "sgd_minibatch_size": 32}
SHIFT, FACTOR = np.array([0.25, -0.5, 0.125, 1.0]), np.array([2.0, 4.0, 8.0, 0.5])  # exact in single precision


def scaler() -> StandardScaler:
    """With these means, and standard deviations 1 / FACTOR."""
    return StandardScaler().fit(np.stack([SHIFT - 1 / FACTOR, SHIFT + 1 / FACTOR]))


class Scaled(gymnasium.ObservationWrapper[Any, Any, Any]):
    """CartPole with the observations that `scaler` makes."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation(self, observation: Any) -> Any:
        return ((observation - SHIFT.astype(np.float32)) * FACTOR.astype(np.float32)).astype(np.float32)


class Plain(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))


class Seeing(gymnasium.Env[Any, Any]):
    """A Dict observation: an image, a vector, categories and an action mask."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (24, 20, 3), np.uint8),
            "arm": spaces.Dict({"speed": spaces.Box(-np.inf, np.inf, (2,), np.float32)}),
            "kind": spaces.Discrete(30, start=10),
            "action_mask": spaces.Box(0, 1, (3,), np.int8),
        }
    )
    action_space = spaces.Discrete(3)

    def _seen(self) -> dict[str, Any]:
        rng = self.np_random
        mask = np.ones(3, np.int8)
        mask[self.step_number % 3] = 0
        return {
            "camera": rng.integers(0, 256, (24, 20, 3), np.uint8),
            "arm": {"speed": rng.normal(5.0, 9.0, 2).astype(np.float32)},
            "kind": int(rng.choice([10, 17, 39])),
            "action_mask": mask,
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.step_number = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert int(action) != self.step_number % 3, "a forbidden action"
        self.step_number += 1
        return self._seen(), float(action), self.step_number >= 9, False, {}


def for_parts(recorded: bool = False) -> Preprocessor:
    """For the parts of `Seeing`, by the names of the observation or by those of recorded data."""
    rng = np.random.default_rng(0)
    before = "observation." if recorded else ""
    rows = {
        f"{before}camera": rng.integers(0, 256, (4, 24, 20, 3), np.uint8),
        f"{before}arm.speed": rng.normal(5.0, 9.0, (100, 2))[:4],
        f"{before}kind": np.array([10, 17, 39, 17]),
    }
    return ByKey(
        {
            f"{before}camera": Chain(Grayscale(), Crop(0, 0, 20, 20), Resize(10, 10)),
            f"{before}arm.speed": StandardScaler(),
            f"{before}kind": OneHotEncoder(),
        }
    ).fit(rows)


@pytest.mark.parametrize(
    ("preprocessor", "space"),
    [
        (StandardScaler(), spaces.Box(-9, 9, (3,), np.float32)),
        (MinMaxScaler(feature_range=(-1, 1), clip=True), spaces.Box(-9, 9, (3,), np.float32)),
        (Chain(SimpleImputer(missing_values=-1), StandardScaler()), spaces.Box(-1, 1, (3,), np.int64)),
        (OneHotEncoder(max_categories=2), spaces.Discrete(4, start=5)),
        (OneHotEncoder(), spaces.MultiDiscrete([3, 4])),
        (OrdinalEncoder(), spaces.Discrete(4, start=5)),
        (StandardScaler(), spaces.Box(0, 255, (9, 10), np.uint8)),
        (Chain(Grayscale(), Crop(1, 2, 18, 16), Resize(12, 9)), spaces.Box(0, 255, (20, 24, 3), np.uint8)),
        (Chain(Grayscale(), Resize(30, 31), Rescale()), spaces.Box(0, 255, (3, 20, 24), np.uint8)),
    ],
    ids=str,
)
def test_the_module_is_the_preprocessor(preprocessor: Preprocessor, space: spaces.Space[Any]) -> None:
    space.seed(0)
    rows = np.stack([np.asarray(space.sample()) for _ in range(50)])
    preprocessor.fit(rows)
    module = preprocessor.module(leaves(space))
    assert all(buffer.dtype == torch.float32 for buffer in module.buffers())
    (found,) = module((torch.from_numpy(rows),))
    expected = preprocessor.transform(rows)
    (leaf,) = module.leaves
    assert found.shape[1:] == leaf.shape == expected.shape[1:]
    if expected.dtype == np.uint8:  # a value that lies between two may be rounded either way
        assert np.abs(found.numpy().astype(int) - expected.astype(int)).max() <= 1
        assert found.dtype == torch.uint8
    else:
        tolerance = 1.01 / 255 if "Resize" in repr(preprocessor) else 1e-5
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=tolerance)


@pytest.mark.parametrize("algorithm", [PPO, DQN], ids=lambda kind: kind.__name__)
def test_training_is_that_of_an_environment_with_converted_observations(algorithm: Any) -> None:
    settings = {**SMALL, "train_batch_size": 32, "normalize_observations": False}
    if algorithm is PPO:
        settings |= {"sgd_minibatch_size": 32, "train_batch_size": 64}
    else:
        settings |= {"learning_starts": 64, "buffer_size": 1000}
    ours = algorithm(Plain, preprocessor=scaler(), **settings)
    theirs = algorithm(Scaled, **settings)
    for _ in range(4):
        one, other = ours.train(), theirs.train()
    assert one["episode_return_mean"] == other["episode_return_mean"]
    weights = ours.policy.get_weights()
    for name, array in theirs.policy.get_weights().items():
        np.testing.assert_allclose(weights[name], array, rtol=1e-5, atol=1e-6)
    observation = np.array([0.1, 0.2, 0.03, 0.4], np.float32)
    seen = Scaled().observation(observation)
    assert ours.compute_single_action(observation, explore=False) == theirs.compute_single_action(seen, explore=False)


def test_sac_has_it_in_front_of_its_critics() -> None:
    scale = StandardScaler().fit(np.random.default_rng(0).normal(0, 3, (50, 3)))
    settings = {**SMALL, "learning_starts": 32, "train_batch_size": 16, "buffer_size": 1000}
    trainer = SAC("Pendulum-v1", preprocessor=scale, **settings)
    before = trainer.policy.get_weights()
    for _ in range(8):
        trainer.train()
    after = trainer.policy.get_weights()
    kept = [name for name in after if name.startswith("preprocessor.")]
    assert len(kept) == 2
    assert all((after[name] == before[name]).all() for name in kept)
    assert any((after[name] != before[name]).any() for name in set(after) - set(kept))


@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_cell_size": 8}], ids=["plain", "lstm"])
@pytest.mark.parametrize("recorded", [False, True])
def test_parts_of_a_dict_with_masks(model: dict[str, Any], recorded: bool) -> None:
    small = {**ON_POLICY, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [16], **model}}
    trainer = PPO(Seeing, preprocessor=for_parts(recorded), **small)
    trainer.train()
    kinds = {leaf.path: leaf.space for leaf in trainer.policy.seen}
    assert kinds[("camera",)] == spaces.Box(0, 255, (10, 10), np.uint8)
    assert kinds[("kind",)].shape == (3,)
    assert kinds[("arm", "speed")].shape == (2,)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_cell_size": 8}], ids=["plain", "lstm"])
def test_an_exported_file_takes_the_observations_of_the_environment(
    model: dict[str, Any], suffix: str, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    small = {**ON_POLICY, "num_sgd_iter": 1, "model": {"fcnet_hiddens": [16], **model}}
    trainer = PPO(Seeing, preprocessor=for_parts(), **small)
    trainer.train()
    exported = export_policy(trainer.policy, tmp_path / f"policy.{suffix}")
    shapes = {each["name"]: each["shape"][1:] for each in exported.contract["inputs"]}
    assert shapes["observation.camera"] == [24, 20, 3]  # before it is cropped and resized
    assert exported.verified is not None
    assert exported.verified.equal == exported.verified.observations == 1000


def test_a_checkpoint_needs_no_other_file(tmp_path: Path) -> None:
    scaler().save(tmp_path / "scaler.json")
    straight = PPO("CartPole-v1", preprocessor=scaler(), **ON_POLICY)
    trainer = PPO("CartPole-v1", preprocessor=str(tmp_path / "scaler.json"), **ON_POLICY)
    (tmp_path / "scaler.json").unlink()
    trainer.train()
    path = trainer.save(tmp_path / "checkpoint")
    again = PPO.from_checkpoint(path)
    again.train()
    for _ in range(2):
        straight.train()
    for name, array in straight.policy.get_weights().items():
        np.testing.assert_array_equal(again.policy.get_weights()[name], array)


def test_a_run_is_resumed_without_the_file(tmp_path: Path) -> None:
    scaler().save(tmp_path / "scaler.safetensors")
    config = {**ON_POLICY, "preprocessor": str(tmp_path / "scaler.safetensors")}
    experiment = {"run": "PPO", "env": "CartPole-v1", "stop": {"training_iteration": 1}, "config": config}
    run = Run.create(experiment, tmp_path / "results")
    run.train()
    (tmp_path / "scaler.safetensors").unlink()
    again = Run.resume(run.folder, lambda old: old.model_copy(update={"stop": {"training_iteration": 2}}))
    again.train()
    names = [name for name in again.algorithm.policy.get_weights() if name.startswith("preprocessor.")]
    assert len(names) == 2
    again.close()
    loaded = SavedPolicy.find(run.folder.path, tmp_path / "results").load({})  # as `outplay evaluate` does
    for name, array in again.algorithm.policy.get_weights().items():
        np.testing.assert_array_equal(loaded.policy.get_weights()[name], array)
    observation = np.array([0.1, 0.2, 0.03, 0.4], np.float32)
    chosen = [each.compute_single_action(observation, explore=False) for each in (loaded, again.algorithm)]
    assert chosen[0] == chosen[1]


def test_mistakes_are_named(tmp_path: Path) -> None:
    def message(env: Any = "CartPole-v1", **settings: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            PPO(env, **{**ON_POLICY, **settings})
        return str(caught.value)

    assert "StandardScaler is not fitted" in message(preprocessor=StandardScaler())
    assert "cannot be read" in message(preprocessor=str(tmp_path / "none.json"))
    assert "exclude each other" in message(preprocessor=scaler(), normalize_observations=True)
    assert "fitted to rows of shape (3,)" in message(preprocessor=StandardScaler().fit(np.zeros((5, 3))))
    assert "converts no part" in message(Seeing, preprocessor=ByKey({"lidar": StandardScaler().fit(np.zeros(3))}))
    assert "only a Box can be scaled" in message(Seeing, preprocessor=ByKey({"kind": StandardScaler().fit(np.ones(3))}))
    assert "preprocessor" in message(preprocessor=5)
