"""Policies: networks, action distributions, weights."""

from __future__ import annotations

from outplay.policies.actor_critic import ActorCritic
from outplay.policies.distributions import Distribution, distribution_for, masked
from outplay.policies.encoder import is_normalisable
from outplay.policies.policy import Policy
from outplay.policies.qnetwork import QNetwork, QOptions
from outplay.policies.qpolicy import QPolicy
from outplay.policies.scaling import ActionScaling
from outplay.policies.spec import PolicySpec
from outplay.policies.weights import Weights

__all__ = [
    "ActionScaling",
    "ActorCritic",
    "Distribution",
    "Policy",
    "PolicySpec",
    "QNetwork",
    "QOptions",
    "QPolicy",
    "Weights",
    "distribution_for",
    "is_normalisable",
    "masked",
]
