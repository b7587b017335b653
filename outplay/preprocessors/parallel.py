"""Fits a preprocessor to data that is larger than memory, in parallel, with a result that does not depend on it.

The rows are cut into chunks of a fixed size. Each chunk has its statistics, and they are merged in the order of the
chunks, whoever computed them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import outplay
from outplay.errors import DataError
from outplay.preprocessors.statistics import Statistics

if TYPE_CHECKING:
    from outplay.preprocessors.base import Preprocessor

_CHUNK_ROWS = 16_384
_CHUNK_BYTES = 8 * 2**20  # in doubles, and with their deviations, eight to thirty times as much
_CHUNKS_PER_TASK = 8  # at least: a task for less takes longer than what it computes

ByColumn = dict[str, Statistics]


def statistics_of(
    preprocessor: Preprocessor, rows: Mapping[str, Any], names: Sequence[str], num_tasks: int | None
) -> ByColumn:
    """The statistics of all rows. `rows`: arrays, or a Dataset (`DatasetRows`)."""
    dataset = getattr(rows, "dataset", None)
    if dataset is None:
        if not len(rows[names[0]]):
            raise DataError(f"{type(preprocessor).__name__}: there are no rows to fit it to")
        return {name: preprocessor.partial(rows[name]) for name in names}
    if not len(dataset):
        raise DataError(f"{type(preprocessor).__name__}: there are no rows to fit it to")
    size = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(1, dataset.row_bytes)))
    chunks = -(-len(dataset) // size)
    tasks = _tasks(num_tasks, chunks)
    if tasks == 1:
        return _merged(preprocessor, _partials(preprocessor, dataset, names, size))
    bounds = [chunks * i // tasks * size for i in range(tasks + 1)]
    shared = outplay.put((preprocessor, dataset, list(names), size))
    refs = [_task.remote(shared, *pair) for pair in pairwise(bounds)]
    return _merged(preprocessor, (each for ref in refs for each in outplay.get(ref)))


def _tasks(given: int | None, chunks: int) -> int:
    if given is not None:
        return max(1, min(given, chunks))
    if chunks < 2 * _CHUNKS_PER_TASK:
        return 1
    cpus = int(outplay.cluster_resources()["CPU"])
    return max(1, min(cpus, chunks // _CHUNKS_PER_TASK))


def _partials(preprocessor: Preprocessor, dataset: Any, names: Sequence[str], size: int) -> Iterator[ByColumn]:
    """The statistics of each chunk."""
    for chunk in dataset.iter_batches(size):
        yield {name: preprocessor.partial(chunk[name]) for name in names}


@outplay.remote
def _task(shared: tuple[Preprocessor, Any, list[str], int], start: int, stop: int) -> list[ByColumn]:
    preprocessor, dataset, names, size = shared
    return list(_partials(preprocessor, dataset.rows(start, min(stop, len(dataset))), names, size))


def _merged(preprocessor: Preprocessor, partials: Iterator[ByColumn]) -> ByColumn:
    def both(a: ByColumn, b: ByColumn) -> ByColumn:
        return {name: preprocessor.merged(a[name], b[name]) for name in a}

    return functools.reduce(both, partials)
