"""A sum tree: draws places in proportion to numbers that change all the time."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


class SumTree:
    """Numbers at places, with their sum, and which place a part of the sum falls on: O(log n) each, for many at once.

    >>> tree = SumTree(4)
    >>> tree.set(np.array([0, 2]), np.array([1.0, 3.0]))
    >>> tree.find(np.array([0.5, 1.5, 3.9]))
    array([0, 2, 2])
    """

    def __init__(self, size: int) -> None:
        self.width = 1 << max(1, (size - 1).bit_length())
        self.nodes = np.zeros(2 * self.width)

    @property
    def total(self) -> float:
        return float(self.nodes[1])

    def __getitem__(self, places: Array) -> Array:
        values: Array = self.nodes[self.width + places]
        return values

    def set(self, places: Array, values: Array) -> None:
        """Of a place that stands twice, the last value holds."""
        nodes = self.width + places
        self.nodes[nodes] = values
        while len(nodes) and nodes[0] > 1:  # all of them are on one level
            nodes = nodes >> 1
            if len(nodes) > 1:  # those with the same parent stand side by side, mostly: others are summed up twice
                nodes = nodes[np.concatenate([[True], nodes[1:] != nodes[:-1]])]
            self.nodes[nodes] = self.nodes[2 * nodes] + self.nodes[2 * nodes + 1]

    def find(self, masses: Array) -> Array:
        """The place where the sum up to it first exceeds each of these numbers in [0, total)."""
        masses, nodes = masses.copy(), np.ones(len(masses), np.int64)
        while nodes[0] < self.width:
            nodes *= 2
            left = self.nodes[nodes]
            # Rounding must not lead to where nothing is.
            right = (masses >= left) & (self.nodes[nodes + 1] > 0)
            masses -= np.where(right, left, 0.0)
            nodes += right
        return nodes - self.width
