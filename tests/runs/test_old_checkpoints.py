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
        assert all(np.array_equal(restored[key], value) for key, value in saved.items())
        assert trainer.evaluate()["episodes"] == 10
        steps = trainer.timesteps
        result = trainer.train()
        assert result["training_iteration"] == 4
        assert result["timesteps_total"] > steps
        again = Path(trainer.save(tmp_path / "again"))
    with Algorithm.from_checkpoint(again) as trainer:
        assert trainer.iteration == 4
