"""Transitions: what is sampled from a replay buffer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outplay.spaces import Leaves

Array = np.ndarray


@dataclass
class Transitions:
    """B n-step transitions."""

    observations: Leaves  # (B, …)
    actions: Array  # (B, …)
    rewards: Array  # (B,): n-step return Σ γ^k r, over m ≤ n steps if the episode ends earlier
    next_observations: Leaves  # (B, …): after m steps
    discounts: Array  # (B,): γ^m, and 0 where the episode terminated
    weights: Array  # (B,): importance-sampling weights; 1 with uniform sampling
    places: Array  # (B,): indices into the buffer, for priority updates

    def rows(self, rows: slice) -> Transitions:
        """Some of the transitions."""
        seen, after = (tuple(leaf[rows] for leaf in leaves) for leaves in (self.observations, self.next_observations))
        actions, rewards, discounts = self.actions[rows], self.rewards[rows], self.discounts[rows]
        return Transitions(seen, actions, rewards, after, discounts, self.weights[rows], self.places[rows])
