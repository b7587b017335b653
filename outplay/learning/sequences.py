"""Sequences of a replay buffer on the learner's device: what a recurrent Q-network learns from (R2D2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from outplay.fragments import Fragment
from outplay.policies import Policy
from outplay.policies.recurrent import PREVIOUS, Memory
from outplay.replay import Recurrence, with_leaf
from outplay.spaces import Leaf

Network = Callable[[tuple[Tensor, ...], Memory], Tensor]


@dataclass
class BurnIn:
    """Steps before some of the sequences: they update the recurrent state, and are not learned from."""

    sequences: Tensor  # (W,): indices of these sequences
    observations: tuple[Tensor, ...]
    memory: Memory  # with sequences of the same length


@dataclass
class SequenceBatch:
    """Sequences with B rows in all, of which R are steps. The others are bootstrapped from: see `replay.Sequences`."""

    observations: tuple[Tensor, ...]  # (B, …)
    memory: Memory  # the state before each sequence, or before its burn-in
    burn_in: BurnIn | None
    steps: Tensor  # (R,): indices of the rows that are steps
    following: Tensor  # (R,): the row that the value of each step is bootstrapped from
    actions: Tensor  # (R,)
    rewards: Tensor  # (R,): n-step
    discounts: Tensor  # (R,): of the bootstrapped value: γ^m, 0 after a termination
    weights: Tensor  # (R,)
    mask: Tensor | None = None  # (R, n): actions allowed at `steps`; None without action masks
    next_mask: Tensor | None = None  # (R, n): actions allowed at `following`

    def outputs(self, network: Network) -> Tensor:
        """The network's outputs for all rows. No gradient flows through the burn-in."""
        memory, burn_in = self.memory, self.burn_in
        if burn_in is not None:
            with torch.no_grad():
                network(burn_in.observations, burn_in.memory)
            after = burn_in.memory.next_state
            state = {name: rows.index_copy(0, burn_in.sequences, after[name]) for name, rows in memory.state.items()}
            memory = replace(memory, state=state)
        return network(self.observations, memory)


def same_length(state: dict[str, Tensor], sequences: Tensor, length: int, previous: Tensor | None) -> Memory:
    """The memory of some of the sequences, with `length` rows each."""
    chosen = {name: rows.index_select(0, sequences) for name, rows in state.items()}
    return Memory(chosen, np.full(len(sequences), length), previous)


def recurrence_of(policy: Policy, burn_in: int) -> tuple[Recurrence | None, tuple[Leaf, ...]]:
    """What the replay buffer stores of a recurrent policy: its states, and the previous action and reward as a leaf."""
    if policy.sequence_length is None:
        return None, ()
    initial = {name: array[0] for name, array in policy.initial_state(1).items()}
    previous = initial.pop(PREVIOUS, None)
    leaf = () if previous is None else (Leaf((PREVIOUS,), spaces.Box(-np.inf, np.inf, previous.shape, np.float32)),)
    return Recurrence(initial, policy.sequence_length, burn_in), leaf


def with_previous(fragment: Fragment) -> Fragment:
    """The Fragment with the previous action and reward as the last leaf of its observations."""
    each, last = fragment.extras[PREVIOUS], fragment.last_policy_state[PREVIOUS]
    return with_leaf(
        fragment, each, last, fragment.final_states.get(PREVIOUS, np.zeros((0, *last.shape[1:]), np.float32))
    )
