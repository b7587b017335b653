"""Custom models in experiment files: by import path, and imported again only if they are trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from outplay import PPO, CheckpointError

MODULE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, observation_space, size=4):
        super().__init__()
        self.linear = nn.Linear(observation_space.shape[0], size)

    def forward(self, observation):
        return self.linear(observation)
"""
EXPERIMENT = """
custom:
  env: CartPole-v1
  run: PPO
  stop: {training_iteration: 2}
  config:
    num_workers: 0
    num_envs: 4
    train_batch_size: 64
    model: {custom_model: "%s", custom_model_config: {size: 6}}
"""


@pytest.mark.parametrize("separator", [":", "."])
def test_an_experiment_names_a_model_and_a_resume_must_trust_it(cli: Any, tmp_path: Path, separator: str) -> None:
    module = "my_nets_for_a_test"
    path = f"{module}{separator}Net"
    (tmp_path / f"{module}.py").write_text(MODULE)
    (tmp_path / "custom.yml").write_text(EXPERIMENT % path)
    code, out, err = cli("train", "-f", str(tmp_path / "custom.yml"))
    assert code == 0, err
    assert "--trust" in out + err  # in the commands to go on
    folder = next(path for path in tmp_path.rglob("config.yaml")).parent
    assert f"custom_model: {path}" in (folder / "config.yaml").read_text()
    code, _, err = cli("train", "--resume", str(folder), "--stop", "training_iteration=3")
    assert code == 2
    assert f"names model.custom_model '{path}', which would be imported" in err
    assert cli("evaluate", str(folder), "--episodes", "1")[0] == 2
    assert cli("evaluate", str(folder), "--episodes", "1", "--trust")[0] == 0
    assert cli("train", "--resume", str(folder), "--stop", "training_iteration=3", "--trust")[0] == 0
    checkpoint = sorted(folder.rglob("checkpoint_*"))[-1]
    with pytest.raises(CheckpointError, match=r"give model.custom_model again in config=…, or trust=True"):
        PPO.from_checkpoint(checkpoint)
    with PPO.from_checkpoint(checkpoint, trust=True) as trainer:
        assert trainer.iteration == 3
        assert trainer.get_policy().get_weights()["encoder.model.linear.weight"].shape == (6, 4)


LIMITED = """
from torch import nn

class Limited(nn.Module):
    def __init__(self, observation_space, most):
        super().__init__()
        self.linear = nn.Linear(observation_space.shape[0], 4)
        self.most = most

    def forward(self, observation):
        if len(observation) > self.most:
            raise ValueError("too many")
        return self.linear(observation)
"""


@pytest.mark.parametrize("most", [10, 64])
def test_what_a_model_raises_is_not_a_bug_of_outplay(cli: Any, tmp_path: Path, most: int) -> None:
    (tmp_path / "my_limited_nets.py").write_text(LIMITED)
    model = {"custom_model": "my_limited_nets:Limited", "custom_model_config": {"most": most}}
    config = {"num_workers": 0, "num_envs": 80, "train_batch_size": 160, "model": model}
    experiment = {"env": "CartPole-v1", "run": "A2C", "stop": {"training_iteration": 1}, "config": config}
    (tmp_path / "limited.yml").write_text(yaml.safe_dump({"limited": experiment}))
    code, _, err = cli("train", "-f", str(tmp_path / "limited.yml"))
    assert code == 2, err
    assert "model.custom_model Limited raised ValueError" in err
    assert "too many (my_limited_nets.py, line 12)" in err
    assert "bug" not in err
    assert bool(list(tmp_path.rglob("config.yaml"))) == (most == 64)  # a first trial fails before the run starts
