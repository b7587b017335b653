"""Sequences from a replay buffer for recurrent networks (Kapturowski et al. 2019, "R2D2").

A drawn sequence starts at a step whose recurrent state was recorded. It has `burn_in` steps, which only update this
state (older weights have computed it), then `length` steps to learn from. It is split where an episode starts: there
the state is the initial one, so the steps after it need no burn-in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from outplay.fragments import Fragment
from outplay.spaces import Leaves

if TYPE_CHECKING:
    from outplay.replay.ring import Replay

Array = np.ndarray


@dataclass(frozen=True)
class Recurrence:
    """What a replay buffer needs to know of a recurrent policy."""

    initial: dict[str, Array]  # the state of one lane at the start of an episode
    length: int  # steps to learn from; the state is recorded at least every so many steps
    burn_in: int = 0

    @property
    def span(self) -> int:
        """The number of steps of a drawn sequence."""
        return self.burn_in + self.length

    def recorded(self, fragment: Fragment) -> Iterator[tuple[int, list[Array]]]:
        """The steps of a Fragment before which the state was recorded, and the state: (E, …) each."""
        yield 0, [fragment.policy_state[name] for name in self.initial]
        inner = [fragment.inner_states[name] for name in self.initial] if fragment.inner_states else []
        for i, state in enumerate(zip(*inner, strict=True)):
            assert fragment.sequence_length is not None
            yield (i + 1) * fragment.sequence_length, list(state)


@dataclass
class Sequences:
    """S sequences with B rows in all, one sequence after the other. Each is a part of one episode.

    The last row of each sequence is for bootstrapping: the observation after its last step. R = B − S rows are steps.
    W of the sequences are preceded by burn-in.
    """

    observations: Leaves  # (B, …)
    lengths: Array  # (S,): rows of each sequence
    states: Leaves  # (S, …): recurrent state before each sequence; where there is burn-in, before the burn-in
    burns_in: Array  # (S,): whether burn-in precedes the sequence
    burn_in: Leaves  # (W · burn_in, …): the observations of the burn-in
    actions: Array  # (R, …)
    rewards: Array  # (R,): n-step return Σ γ^k r, over m ≤ n steps if the sequence or the episode ends earlier
    ahead: Array  # (R,): m; the value is bootstrapped from the row m rows later
    discounts: Array  # (R,): γ^m, and 0 where the episode terminated
    weights: Array  # (R,): importance-sampling weights; 1 with uniform sampling
    places: Array  # (R,): index into the buffer of the first step that was drawn, for priority updates

    @property
    def steps(self) -> Array:
        """(R,): indices of the rows that are steps."""
        return np.delete(np.arange(self.lengths.sum()), np.cumsum(self.lengths) - 1)


def sequences(replay: Replay, recurrence: Recurrence, begins: Array, lanes: Array, weights: Array) -> Sequences:
    """The sequences that start at these steps (D,), each with `span` steps."""
    burn_in, span = recurrence.burn_in, recurrence.span
    times = begins[:, None] + np.arange(span)  # (D, span)
    beside = np.broadcast_to(lanes[:, None], times.shape)
    rows = times % replay.slots * replay.lanes + beside
    began = replay.began.take(rows)
    starts = began == times  # of episodes
    # The first steps are burn-in, unless their episode starts in this sequence. Burn-in that ends with an episode is
    # left out.
    learned = (np.arange(span) >= burn_in) | (began >= begins[:, None])
    burns_in = (began[:, burn_in] < begins) & (burn_in > 0)
    first = starts.copy()
    first[:, 0] = True
    first[:, burn_in] |= burns_in
    last = np.ones(times.shape, bool)  # of its part
    last[:, :-1] = starts[:, 1:]
    rewards, taken, terminated = _returns(replay, rows, last)

    kept = np.flatnonzero(learned)
    ends, lane_of = last.ravel()[kept], beside.ravel()[kept]
    time_of = times.ravel()[kept]
    at = np.arange(len(kept)) + np.cumsum(ends) - ends  # rows of the steps: one more row after each part
    row_times, row_lanes = (np.zeros(len(kept) + int(ends.sum()), np.int64) for _ in range(2))
    row_times[at], row_lanes[at] = time_of, lane_of
    after = at[ends] + 1
    row_times[after], row_lanes[after] = time_of[ends] + 1, lane_of[ends]
    seen = replay.observations_at(row_times, row_lanes)
    flat = rows.ravel()[kept]
    for row in np.flatnonzero(ends & replay.truncated.take(flat) & ~replay.terminated.take(flat)).tolist():
        for leaf, value in zip(seen, replay.finals[int(lane_of[row])][int(time_of[row])], strict=True):
            leaf[at[row] + 1] = value

    opening = first.ravel()[kept]
    item = kept[opening] // span
    with_burn_in = (kept[opening] % span == burn_in) & burns_in[item]
    state_times = np.where(with_burn_in, begins[item], time_of[opening])
    actions = replay.actions.reshape(-1, *replay.actions.shape[2:])
    return Sequences(
        seen,
        np.diff(after, prepend=-1),
        _states(replay, recurrence, state_times, lanes[item]),
        with_burn_in,
        replay.observations_at(times[burns_in, :burn_in].ravel(), beside[burns_in, :burn_in].ravel()),
        actions[flat],
        rewards.ravel()[kept],
        taken.ravel()[kept],
        (replay.gamma ** taken.ravel()[kept] * ~terminated.ravel()[kept]).astype(np.float32),
        weights[kept // span],
        rows[kept // span, 0],
    )


def _returns(replay: Replay, rows: Array, last: Array) -> tuple[Array, Array, Array]:
    """(n-step returns, number of steps in each, whether the episode terminated there), (D, span) each."""
    span = rows.shape[1]
    ahead = np.minimum(np.arange(span)[:, None] + np.arange(replay.n_step), span - 1)  # (span, n)
    over = replay.terminated.take(rows)
    counts = np.ones((*rows.shape, replay.n_step), bool)
    counts[..., 1:] = ~np.logical_or.accumulate((over | last)[:, ahead[:, :-1]], -1)
    powers = (replay.gamma ** np.arange(replay.n_step)).astype(np.float32)
    rewards = (replay.rewards.take(rows)[:, ahead] * counts * powers).sum(-1, dtype=np.float32)
    taken = counts.sum(-1)
    return rewards, taken, np.take_along_axis(over, np.arange(span) + taken - 1, 1)


def _states(replay: Replay, recurrence: Recurrence, times: Array, lanes: Array) -> Leaves:
    """The states before these steps: those recorded there, else the initial state."""
    initial = tuple(recurrence.initial.values())
    states = [replay.states[lane].get(time, initial) for time, lane in zip(times.tolist(), lanes.tolist(), strict=True)]
    return tuple(np.stack(arrays) for arrays in zip(*states, strict=True))
