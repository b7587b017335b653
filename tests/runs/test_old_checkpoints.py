"""Checkpoints that earlier versions wrote still load, and their runs go on."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from outplay import Algorithm

OLD = Path(__file__).parents[1] / "data" / "checkpoints-0.2.0"


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_a_checkpoint_of_version_0_2_is_restored_and_trained_further(name: str, tmp_path: Path) -> None:
    checkpoint = Path(shutil.copytree(OLD / name, tmp_path / name)) / "checkpoint_000003"
    saved = load_file(checkpoint / "weights.safetensors")
    with Algorithm.from_checkpoint(checkpoint) as trainer:
        restored = trainer.get_policy().get_weights()
        epsilon = saved.pop("epsilon", None)  # now beside the weights
        assert restored.keys() == saved.keys()
        assert all(np.array_equal(restored[key], value) for key, value in saved.items())
        assert trainer.get_policy().exploration == ({} if epsilon is None else {"epsilon": pytest.approx(epsilon)})
        assert trainer.evaluate()["episodes"] == 10
        steps = trainer.timesteps
        result = trainer.train()
        assert result["training_iteration"] == 4
        assert result["timesteps_total"] > steps
        again = Path(trainer.save(tmp_path / "again"))
    with Algorithm.from_checkpoint(again) as trainer:
        assert trainer.iteration == 4


def test_the_target_network_of_version_0_2_is_kept(tmp_path: Path) -> None:
    """It had ε among its numbers; the others are the same, in the same order."""
    checkpoint = Path(shutil.copytree(OLD / "dqn", tmp_path / "dqn")) / "checkpoint_000003"
    target = load_file(checkpoint / "optimizer.safetensors")["target"]
    with Algorithm.from_checkpoint(checkpoint) as trainer:
        _, tensors = trainer.learner.state()
        kept = tensors["target"].numpy()
        parameters = sum(parameter.numel() for parameter in trainer.policy.parameters)
        assert len(kept) == len(target) - 1
        assert np.array_equal(kept[:parameters], target[:parameters])
        assert np.array_equal(kept[-1:], target[-1:])  # the atoms, which come after ε
        trainer.load_weights(checkpoint)
        assert trainer.evaluate(checkpoint) == trainer.evaluate()
