"""How minibatches are split over data-parallel learners: each computes on adjacent rows, or on whole sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from outplay.replay import Sample, Sequences, Transitions
from outplay.spaces import Leaves

if TYPE_CHECKING:
    from outplay.learning.communicator import Communicator

Array = np.ndarray


@dataclass(frozen=True)
class Share:
    """The rows of a minibatch that one learner computes on: `begin` to `end` of `total`.

    If there are fewer rows than learners, some compute on a row of another one, which does not count.
    """

    begin: int
    end: int
    total: int
    counts: bool = True

    @property
    def weight(self) -> float:
        """The weight of a mean over these rows in the mean over all rows."""
        return (self.end - self.begin) / self.total if self.counts else 0.0

    @property
    def rows(self) -> slice:
        return slice(self.begin, self.end)


def share_of(total: int, rank: int, size: int) -> Share:
    """The rows of learner `rank`: parts differ by at most one row.

    >>> [share_of(5, rank, 2) for rank in range(2)]
    [Share(begin=0, end=2, total=5, counts=True), Share(begin=2, end=5, total=5, counts=True)]
    """
    begin, end = total * rank // size, total * (rank + 1) // size
    return Share(begin, end, total) if begin < end else Share(0, 1, total, counts=False)


def sequences_of(lengths: Array, rank: int, size: int) -> tuple[Array, Share]:
    """(the sequences of learner `rank`, the share of their rows): adjacent sequences, with about as many rows each.

    >>> sequences_of(np.array([3, 1, 4]), rank=1, size=2)
    (array([2]), Share(begin=4, end=8, total=8, counts=True))
    """
    total, ends = int(lengths.sum()), np.cumsum(lengths)
    chosen = np.flatnonzero((2 * ends - lengths) * size // (2 * total) == rank)  # by their middle
    if not len(chosen):
        return np.zeros(1, np.int64), Share(0, int(ends[0]), total, counts=False)
    return chosen, Share(int(ends[chosen[0]] - lengths[chosen[0]]), int(ends[chosen[-1]]), total)


def part_of(drawn: Sample, rank: int, size: int) -> tuple[Sample, Share]:
    """The part of a minibatch that learner `rank` computes on, and its share: of transitions, or steps of sequences."""
    if isinstance(drawn, Sequences):
        return _part_of_sequences(drawn, rank, size)
    share = share_of(len(drawn.places), rank, size)
    return drawn.rows(share.rows), share


def _part_of_sequences(drawn: Sequences, rank: int, size: int) -> tuple[Sequences, Share]:
    chosen, share = sequences_of(drawn.lengths - 1, rank, size)  # of the steps: one row of each is bootstrapped from
    begin, end = int(chosen[0]), int(chosen[-1]) + 1

    def cut(arrays: Leaves, lengths: Array) -> Leaves:
        """The rows of the chosen sequences, of which each has `lengths` rows."""
        rows = slice(int(lengths[:begin].sum()), int(lengths[:end].sum()))
        return tuple(array[rows] for array in arrays)

    names = ("actions", "rewards", "ahead", "discounts", "weights", "places")
    steps = cut(tuple(getattr(drawn, name) for name in names), drawn.lengths - 1)
    each = len(drawn.burn_in[0]) // max(1, int(drawn.burns_in.sum()))  # steps of burn-in
    part = replace(
        drawn,
        observations=cut(drawn.observations, drawn.lengths),
        lengths=drawn.lengths[begin:end],
        states=tuple(state[begin:end] for state in drawn.states),
        burns_in=drawn.burns_in[begin:end],
        burn_in=cut(drawn.burn_in, drawn.burns_in * each),
        **dict(zip(names, steps, strict=True)),
    )
    return part, share


def distributed(
    communicator: Communicator, draw: Callable[[], Iterator[Sample]], updates: int
) -> Iterator[tuple[Sample, Array]]:
    """This learner's part of each minibatch from a replay buffer, and the places of all rows in it.

    The first learner draws the minibatches and sends each learner its part. The others have no replay buffer.
    """
    if communicator.rank == 0:
        for drawn in draw():
            for rank in range(1, communicator.size):
                part, share = part_of(drawn, rank, communicator.size)
                arrays, structure = to_arrays(part)
                communicator.send(arrays, [share.begin, share.end, share.total, share.counts, *structure], rank)
            part, share = part_of(drawn, 0, communicator.size)
            with communicator.sharing(share):
                yield part, drawn.places
    else:
        for _ in range(updates):
            arrays, (begin, end, total, counts, *structure) = communicator.receive(0)
            part = from_arrays(arrays, structure)
            with communicator.sharing(Share(begin, end, total, bool(counts))):
                yield part, part.places


def to_arrays(drawn: Sample) -> tuple[list[Array], list[int]]:
    """A minibatch as a list of arrays and numbers, which `from_arrays` turns back."""
    arrays: list[Array] = []
    counts = [int(isinstance(drawn, Sequences))]
    for value in vars(drawn).values():
        arrays += value if isinstance(value, tuple) else [value]
        counts.append(len(value) if isinstance(value, tuple) else -1)
    return arrays, counts


def from_arrays(arrays: list[Array], counts: list[int]) -> Sample:
    """The minibatch of `to_arrays`."""
    left = iter(arrays)
    values = [next(left) if count < 0 else tuple(next(left) for _ in range(count)) for count in counts[1:]]
    return Sequences(*values) if counts[0] else Transitions(*values)  # type: ignore[arg-type]
