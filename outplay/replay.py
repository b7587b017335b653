"""Replay: experience kept in arrays of fixed size, to be learned from again and again.

Steps lie as (T, N): T slots of a ring, N lanes, all of which move on together; step number t is in slot t % T. What can
be drawn are steps whose future (n steps of it) is known and whose past (the frames that are stacked) is still there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from outplay.fragments import Batch
from outplay.spaces import Leaf, Leaves

Array = np.ndarray
Key = tuple[int, int]  # step, lane

_LEAST_PRIORITY = 1e-6
_COLUMNS = ("actions", "rewards", "terminated", "truncated", "began")


@dataclass
class Transitions:
    """B transitions over up to n steps each, as a learner needs them."""

    observations: Leaves  # (B, …)
    actions: Array  # (B, …)
    rewards: Array  # (B,): Σ γ^k r over the m ≤ n steps up to an episode's end
    next_observations: Leaves  # (B, …): what came after them
    discounts: Array  # (B,): γ^m, and 0 where the episode terminated
    weights: Array  # (B,): importance weights; 1 where all are equally likely to be drawn
    places: Array  # (B,): where they lie


@dataclass
class Sequences:
    """L steps in a row, B times, for policies with a memory."""

    observations: Leaves  # (L, B, …)
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    episode_start: Array  # (L, B): the memory begins anew here


class Replay:
    """Steps of all lanes, drawn with equal chances.

    >>> replay = Replay(leaves, lanes=16, capacity=100_000, n_step=3, gamma=0.99)
    >>> replay.add(batch)
    >>> transitions = replay.sample(32, rng)

    With `stack`, images are stacks of so many frames of which only the newest is kept; the others are those of the
    steps before. 1,000,000 steps of Atari (84 × 84 × 4) take 7.1 GB.
    """

    def __init__(
        self,
        leaves: tuple[Leaf, ...],
        lanes: int,
        capacity: int,
        n_step: int = 1,
        gamma: float = 0.99,
        stack: int = 1,
    ) -> None:
        self.leaves = leaves
        self.lanes = lanes
        self.slots = -(-capacity // lanes)
        self.n_step = n_step
        self.gamma = gamma
        self.stack = stack
        self.added = 0  # steps of each lane
        shape = (self.slots, lanes)
        self.observations = tuple(
            np.zeros((*shape, *(leaf.shape[1:] if self._is_stacked(leaf) else leaf.shape)), leaf.dtype)
            for leaf in leaves
        )
        self.actions = np.zeros(shape, np.int64)
        self.rewards = np.zeros(shape, np.float32)
        self.terminated = np.zeros(shape, bool)
        self.truncated = np.zeros(shape, bool)
        self.began = np.zeros(shape, np.int64)  # the step that each one's episode began with
        self.highest = 1.0  # of all priorities so far, where there are some
        self.firsts: dict[Key, Leaves] = {}  # an episode's first observation, where frames are stacked
        self.finals: dict[Key, Leaves] = {}  # what came after a truncated episode's last step

    def _is_stacked(self, leaf: Leaf) -> bool:
        return self.stack > 1 and leaf.is_image

    @property
    def oldest(self) -> int:
        """The first step that can be drawn."""
        gone = max(0, self.added - self.slots)
        return gone + self.stack - 1 if gone else 0

    @property
    def newest(self) -> int:
        """One after the last step that can be drawn."""
        return self.added - self.n_step

    def __len__(self) -> int:
        """How many steps can be drawn."""
        return max(0, self.newest - self.oldest) * self.lanes

    def add(self, batch: Batch, rewards: Array | None = None, over: Array | None = None) -> None:
        """Take in the steps of a Batch, the oldest making way; `rewards` and `over` (terminated) instead of its own."""
        steps = len(batch.rewards)
        assert batch.all_valid
        assert steps + self.n_step + self.stack <= self.slots
        times = self.added + np.arange(steps)
        slots = times % self.slots
        for store, leaf, values in zip(self.observations, self.leaves, batch.observations, strict=True):
            store[slots] = values[:, :, -1] if self._is_stacked(leaf) else values
        if not self.added:
            self.actions = np.zeros((self.slots, *batch.actions.shape[1:]), batch.actions.dtype)
        self.actions[slots] = batch.actions
        self.rewards[slots] = batch.rewards if rewards is None else rewards
        self.terminated[slots] = batch.terminated if over is None else over
        self.truncated[slots] = batch.truncated
        before = self.began[(self.added - 1) % self.slots]
        started = np.where(batch.episode_start, times[:, None], -1)
        self.began[slots] = np.maximum.accumulate(np.concatenate([before[None], started]))[1:]
        if self.stack > 1:
            for step, lane in np.argwhere(batch.episode_start).tolist():
                self.firsts[int(times[step]), lane] = tuple(leaf[step, lane].copy() for leaf in batch.observations)
        for i, (step, lane) in enumerate(zip(batch.final_steps.tolist(), batch.final_lanes.tolist(), strict=True)):
            self.finals[int(times[step]), lane] = tuple(leaf[i] for leaf in batch.final_observations)
        self.added += steps
        gone = self.added - self.slots
        for kept, margin in ((self.firsts, self.stack), (self.finals, 0)):
            for key in [key for key in kept if key[0] + margin < gone]:
                del kept[key]

    def state(self) -> dict[str, Array]:
        """What was added, as arrays."""
        filled = min(self.added, self.slots)
        arrays = {
            **{f"observations.{i}": store for i, store in enumerate(self.observations)},
            **{name: getattr(self, name) for name in _COLUMNS},
        }
        state = {name: array[:filled] for name, array in arrays.items()}
        for name, kept in (("firsts", self.firsts), ("finals", self.finals)):
            state[f"{name}.keys"] = np.array(list(kept), np.int64).reshape(-1, 2)
            for i in range(len(self.leaves) if kept else 0):
                state[f"{name}.{i}"] = np.stack([leaves[i] for leaves in kept.values()])
        return state

    def load(self, added: int, highest: float, state: dict[str, Array]) -> None:
        """Take back what `state` gave."""
        self.added, self.highest = added, highest
        self.actions = np.zeros((self.slots, *state["actions"].shape[1:]), state["actions"].dtype)
        for i, store in enumerate(self.observations):
            store[: len(state["actions"])] = state[f"observations.{i}"]
        for name in _COLUMNS:
            getattr(self, name)[: len(state["actions"])] = state[name]
        for name, kept in (("firsts", self.firsts), ("finals", self.finals)):
            kept.clear()
            for row, (step, lane) in enumerate(state[f"{name}.keys"].tolist()):
                kept[step, lane] = tuple(np.array(state[f"{name}.{i}"][row]) for i in range(len(self.leaves)))

    def sample(self, number: int, rng: np.random.Generator) -> Transitions:
        times = rng.integers(self.oldest, self.newest, number)
        lanes = rng.integers(0, self.lanes, number)
        return self.transitions(times, lanes, np.ones(number, np.float32))

    def transitions(self, times: Array, lanes: Array, weights: Array) -> Transitions:
        """Those that begin with these steps."""
        slots = (times[:, None] + np.arange(self.n_step)) % self.slots
        beside = lanes[:, None]
        ended = self.terminated[slots, beside] | self.truncated[slots, beside]
        counts = np.ones(slots.shape, bool)
        counts[:, 1:] = ~np.logical_or.accumulate(ended[:, :-1], 1)
        powers = (self.gamma ** np.arange(self.n_step)).astype(np.float32)
        rewards = (self.rewards[slots, beside] * counts * powers).sum(1, dtype=np.float32)
        taken = counts.sum(1)
        last = times + taken - 1
        terminated, truncated = self.terminated[last % self.slots, lanes], self.truncated[last % self.slots, lanes]
        # Nothing comes after a termination: any observation will do.
        following = self.observations_at(np.where(terminated | truncated, last, last + 1), lanes)
        for row in np.flatnonzero(truncated & ~terminated).tolist():
            for leaf, value in zip(following, self.finals[int(last[row]), int(lanes[row])], strict=True):
                leaf[row] = value
        return Transitions(
            self.observations_at(times, lanes),
            self.actions[times % self.slots, lanes],
            rewards,
            following,
            (self.gamma**taken * ~terminated).astype(np.float32),
            weights,
            times % self.slots * self.lanes + lanes,
        )

    def observations_at(self, times: Array, lanes: Array) -> Leaves:
        found = []
        for i, (store, leaf) in enumerate(zip(self.observations, self.leaves, strict=True)):
            if not self._is_stacked(leaf):
                found.append(store[times % self.slots, lanes])
                continue
            back = times[:, None] + np.arange(1 - self.stack, 1)
            stacked = store[back % self.slots, lanes[:, None]]
            age = times - self.began[times % self.slots, lanes]
            for row in np.flatnonzero(age < self.stack - 1).tolist():  # with frames from before the episode
                first = self.firsts[int(times[row] - age[row]), int(lanes[row])][i]
                missing = self.stack - 1 - int(age[row])
                stacked[row, :missing] = first[self.stack - 1 - missing : self.stack - 1]
            found.append(stacked)
        return tuple(found)

    def sequences(self, number: int, length: int, rng: np.random.Generator) -> Sequences:
        """Drawn at random; an episode may end within, and the next one begin."""
        begins = rng.integers(self.oldest, self.added - length + 1, number)
        lanes = rng.integers(0, self.lanes, number)
        times = begins + np.arange(length)[:, None]
        slots, beside = times % self.slots, np.broadcast_to(lanes, times.shape)
        flat = self.observations_at(times.ravel(), beside.ravel())
        return Sequences(
            tuple(leaf.reshape(length, number, *leaf.shape[1:]) for leaf in flat),
            self.actions[slots, beside],
            self.rewards[slots, beside],
            self.terminated[slots, beside],
            self.truncated[slots, beside],
            self.began[slots, beside] == times,
        )


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
        nodes = self.width + places
        self.nodes[nodes] = values
        while len(nodes) and nodes[0] > 1:  # all of them are on one level
            nodes = np.unique(nodes >> 1)
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


class PrioritizedReplay(Replay):
    """Steps drawn in proportion to priority^α (Schaul et al. 2016). New steps have the highest priority so far."""

    def __init__(
        self,
        leaves: tuple[Leaf, ...],
        lanes: int,
        capacity: int,
        n_step: int = 1,
        gamma: float = 0.99,
        stack: int = 1,
        alpha: float = 0.6,
    ) -> None:
        super().__init__(leaves, lanes, capacity, n_step, gamma, stack)
        self.alpha = alpha
        self.tree = SumTree(self.slots * lanes)

    def add(self, batch: Batch, rewards: Array | None = None, over: Array | None = None) -> None:
        known, gone = max(0, self.newest), self.oldest
        super().add(batch, rewards, over)
        # What can no longer be drawn, or not yet; then what can be drawn from now on.
        self._set(range(gone, self.oldest), 0.0)
        self._set(range(max(known, self.newest), self.added), 0.0)
        self._set(range(max(known, self.oldest), self.newest), self.highest**self.alpha)

    def _set(self, times: Iterable[int], priority: float) -> None:
        slots = np.array(list(times), np.int64) % self.slots
        if len(slots):
            self.tree.set((slots[:, None] * self.lanes + np.arange(self.lanes)).ravel(), np.array(priority))

    def sample(self, number: int, rng: np.random.Generator, beta: float = 0.4) -> Transitions:
        """One from each of `number` equal parts of the sum, weighted by (1 / (steps · chance))^β; the largest is 1."""
        masses = (np.arange(number) + rng.random(number)) / number * self.tree.total
        places = self.tree.find(masses)
        slots, lanes = places // self.lanes, places % self.lanes
        times = self.added - 1 - (self.added - 1 - slots) % self.slots
        chances = self.tree[places] / self.tree.total
        weights = (len(self) * chances) ** -beta
        return self.transitions(times, lanes, (weights / weights.max()).astype(np.float32))

    def state(self) -> dict[str, Array]:
        return {**super().state(), "priorities": self.tree[np.arange(self.slots * self.lanes)]}

    def load(self, added: int, highest: float, state: dict[str, Array]) -> None:
        super().load(added, highest, state)
        self.tree.set(np.arange(self.slots * self.lanes), state["priorities"])

    def update(self, places: Array, errors: Array) -> None:
        """New priorities: the size of the errors. If a place stands twice, its last one holds.

        What can no longer be drawn stays so, however late the errors come.
        """
        there = self.tree[places] > 0
        priorities = np.abs(errors[there]).astype(np.float64) + _LEAST_PRIORITY
        self.highest = max(self.highest, float(priorities.max(initial=0.0)))
        self.tree.set(places[there], priorities**self.alpha)
