"""The standard deviation of parameter space noise, adapted while training (Plappert et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from outplay.learning import qlearning
from outplay.learning.offpolicy import TransitionBatch
from outplay.learning.sequences import SequenceBatch
from outplay.learning.targets import TargetNetwork
from outplay.policies import QNetwork
from outplay.policies.perturbing import perturb, perturbable

FACTOR = 1.01
LEAST, MOST = 1e-6, 1e3  # limits of σ: it stays finite, and can grow again after a time with ε = 0


def target_divergence(epsilon: float, num_actions: int) -> float:
    """KL divergence between a greedy policy and its ε-greedy one: −log(1 − ε + ε/A).

    >>> round(target_divergence(0.5, 2), 6)  # −log 0.75
    0.287682
    """
    return -math.log(1 - epsilon + epsilon / num_actions)


def divergence(clean: Tensor, perturbed: Tensor) -> Tensor:
    """Mean KL(clean ‖ perturbed) of the softmax policies of two sets of Q-values, (B, A) each."""
    logs = clean.log_softmax(-1)
    return (logs.exp() * (logs - perturbed.log_softmax(-1))).sum(-1).mean()


def adapted(stddev: float, measured: float, target: float) -> float:
    """The next σ: greater if the perturbed policy is closer than the target, else (or if it is not finite) less.

    >>> adapted(1.0, measured=0.1, target=0.2), adapted(1.01, measured=0.3, target=0.2)
    (1.01, 1.0)
    """
    return min(stddev * FACTOR, MOST) if measured < target else max(stddev / FACTOR, LEAST)


class AdaptiveNoise:
    """σ, and a copy of the Q-network to measure what noise of this σ does.

    `flat` has the parameters and buffers of `network`.
    """

    def __init__(self, network: QNetwork, flat: Tensor, stddev: float) -> None:
        self.stddev = stddev
        self._network = network
        self._copy = TargetNetwork(network, flat)
        self._parts = perturbable(network)

    @torch.no_grad()
    def adapt(
        self,
        batch: TransitionBatch | SequenceBatch,
        epsilon: float,
        rng: np.random.Generator,
        mean: Callable[[Tensor], Tensor] = lambda measured: measured,
    ) -> Tensor:
        """Adapt σ by one minibatch. Returns the KL divergence of the policy with noise from `rng`.

        `mean`: the mean over all learners, if each has a part of the minibatch.
        """
        self._copy.reset()
        perturb(self._copy.flat, self._parts, self.stddev, rng)
        values = (qlearning.values(network, batch) for network in (self._network, self._copy.network))
        measured = divergence(*values)
        self.stddev = adapted(self.stddev, float(mean(measured)), target_divergence(epsilon, self._network.num_actions))
        return measured
