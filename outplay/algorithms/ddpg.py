"""DDPG: deep deterministic policy gradient (Lillicrap et al. 2016). TD3 without its three additions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from outplay.algorithms.algorithm import Algorithm
from outplay.algorithms.td3 import NoiseConfig, TD3Config, TD3Learner
from outplay.learning.actorcritic import ReplayActorCriticConfig
from outplay.learning.offpolicy import ReplayConfig
from outplay.policies.box import DeterministicPolicy
from outplay.settings import Few, NotNegative, Positive, with_default


class DDPGNoiseConfig(NoiseConfig):
    """Exploration by noise on actions. The unit is half the range of an action: actions are in [−1, 1]."""

    type: Literal["GaussianNoise", "OrnsteinUhlenbeckNoise", "Random"] = with_default(
        NoiseConfig, "type", "OrnsteinUhlenbeckNoise"
    )


class DDPGConfig(TD3Config):
    """Settings of DDPG: those of TD3, with other defaults."""

    exploration_config: DDPGNoiseConfig = Field(DDPGNoiseConfig(), description="How to explore.")
    num_critics: Few = with_default(ReplayActorCriticConfig, "num_critics", 1)
    policy_delay: Positive = with_default(ReplayActorCriticConfig, "policy_delay", 1)
    target_network_update_freq: Positive = with_default(ReplayConfig, "target_network_update_freq", 1)
    target_noise: NotNegative = with_default(TD3Config, "target_noise", 0.0)


class DDPGPolicy(DeterministicPolicy):
    name = "DDPG"


class DDPG(Algorithm[DDPGConfig]):
    """Deep deterministic policy gradient.

    >>> with DDPG(env="Pendulum-v1") as trainer:
    ...     result = trainer.train()
    """

    Config = DDPGConfig
    Learner = TD3Learner
    policy_class = DDPGPolicy
    with_value = False

    learner: TD3Learner
