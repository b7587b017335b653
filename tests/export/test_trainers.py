"""Trained policies of every algorithm act in onnxruntime as in Outplay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outplay import A2C, APPO, DDPG, DQN, IMPALA, PG, PPO, PQN, SAC, TD3, Algorithm
from outplay.export import PolicyModule, export_policy
from outplay.export.contract import contract
from outplay.export.formats import module_runner
from outplay.testing.probes import Aim, Forbidding, Nested
from tests.export.acting import check_same_actions
from tests.export.kinds import policy_of
from tests.export.test_kinds import session_runner

SMALL: dict[str, Any] = {"num_envs": 4, "num_workers": 0, "train_batch_size": 64, "seed": 7}
OFF_POLICY: dict[str, Any] = {**SMALL, "learning_starts": 32, "buffer_size": 2000}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("algorithm", "env", "settings"),
    [
        (PPO, "CartPole-v1", {**SMALL, "normalize_observations": True}),
        (PPO, Nested, SMALL),
        (PPO, Aim, SMALL),
        (PPO, Forbidding, SMALL),
        (PPO, "CartPole-v1", {**SMALL, "frame_stack": 3}),
        (PPO, "FrozenLake-v1", {**SMALL, "model": {"use_attention": True}}),
        (A2C, "CartPole-v1", SMALL),
        (PG, "CartPole-v1", SMALL),
        (IMPALA, "CartPole-v1", {**SMALL, "async": False, "rollout_fragment_length": "auto"}),
        (APPO, "CartPole-v1", {**SMALL, "async": False, "rollout_fragment_length": "auto"}),
        (PQN, "CartPole-v1", SMALL),
        (DQN, "CartPole-v1", OFF_POLICY),
        (DQN, Forbidding, {**OFF_POLICY, "distributional": "c51", "noisy": True}),
        (SAC, "CartPole-v1", OFF_POLICY),
        (SAC, "Pendulum-v1", OFF_POLICY),
        (TD3, "Pendulum-v1", OFF_POLICY),
        (DDPG, "Pendulum-v1", OFF_POLICY),
    ],
)
def test_a_trained_policy_acts_in_onnxruntime(
    algorithm: type[Algorithm], env: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    with algorithm(env, settings) as trainer:
        for _ in range(2):
            trainer.train()
        exported = trainer.export(str(tmp_path / "policy.onnx"))
        stated = json.loads((tmp_path / "policy.onnx.json").read_text())
        assert stated["algorithm"] == algorithm.__name__
        assert stated["stacked_frames"] == settings.get("frame_stack", 1)
        check_same_actions(trainer.get_policy(), stated, session_runner(exported.path), varied=False)


class Shifted(nn.Module):
    """What comes in front of the encoder is part of the network, and so of the file."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.register_buffer("shift", torch.linspace(-1, 1, 5))

    def forward(self, observations: tuple[Tensor, ...], *others: Any) -> Tensor:
        features: Tensor = self.encoder((observations[0] * 3 + self.shift, *observations[1:]), *others)
        return features


def test_a_module_in_front_of_the_encoder_is_exported(tmp_path: Path) -> None:
    policy = policy_of("multi discrete")
    plain = PolicyModule(policy)
    network: Any = policy.network
    network.encoder = Shifted(network.encoder)
    exported = export_policy(policy, tmp_path / "policy.onnx")
    check_same_actions(policy, exported.contract, session_runner(exported.path))
    with pytest.raises(AssertionError):
        check_same_actions(policy, contract(plain), module_runner(plain))
