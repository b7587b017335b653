"""Fits a preprocessor to data that is larger than memory, in parallel, with a result that does not depend on it.

The rows are cut into chunks of a fixed size. Each chunk has its statistics. Those of consecutive chunks are merged,
then those of the groups of chunks, in their order, whoever computed them. The number of groups is limited, so what a
task returns does not grow with the data.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any

import outplay
from outplay.arguments import column
from outplay.errors import DataError
from outplay.preprocessors.statistics import Statistics

if TYPE_CHECKING:
    from outplay.preprocessors.base import Preprocessor

_CHUNK_ROWS = 16_384
_CHUNK_BYTES = 8 * 2**20  # in doubles, and with their deviations, eight to thirty times as much
_MOST_GROUPS = 128  # of chunks
_MOST_VALUES = 1_000_000  # different ones in a column: what is counted must fit into memory
_CHUNKS_PER_TASK = 8  # at least: a task for less takes longer than what it computes

ByColumn = dict[str, Statistics]


def statistics_of(
    preprocessor: Preprocessor, rows: Mapping[str, Any], names: Sequence[str], num_tasks: int | None, task_cpus: float
) -> ByColumn:
    """The statistics of all rows. `rows`: arrays, or a Dataset (`DatasetRows`)."""
    dataset = getattr(rows, "dataset", None)
    if dataset is None:
        if not len(rows[names[0]]):
            raise DataError(f"{type(preprocessor).__name__}: there are no rows to fit it to")
        return {name: preprocessor.partial(rows[name]) for name in names}
    if not len(dataset):
        raise DataError(f"{type(preprocessor).__name__}: there are no rows to fit it to")
    dataset = dataset.select(names)  # others are not read
    size = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(1, dataset.row_bytes)))
    chunks = -(-len(dataset) // size)
    per_group = -(-chunks // _MOST_GROUPS)
    groups = -(-chunks // per_group)
    tasks = _tasks(num_tasks, chunks, groups)
    if tasks == 1:
        return _merged(preprocessor, _by_group(preprocessor, dataset, names, size, per_group))
    bounds = [groups * i // tasks * per_group * size for i in range(tasks + 1)]
    shared = outplay.put((preprocessor, dataset, list(names), size, per_group))
    task = _task.options(num_cpus=task_cpus)
    refs = [task.remote(shared, *pair) for pair in pairwise(bounds)]
    return _merged(preprocessor, (each for ref in refs for each in outplay.get(ref)))


def _tasks(given: int | None, chunks: int, groups: int) -> int:
    if given is not None:
        return max(1, min(given, groups))
    if chunks < 2 * _CHUNKS_PER_TASK:
        return 1
    cpus = int(outplay.cluster_resources()["CPU"])
    return max(1, min(cpus, chunks // _CHUNKS_PER_TASK, groups))


def _by_group(
    preprocessor: Preprocessor, dataset: Any, names: Sequence[str], size: int, per_group: int
) -> Iterator[ByColumn]:
    """The statistics of each group of chunks."""
    chunks = ({name: preprocessor.partial(chunk[name]) for name in names} for chunk in dataset.iter_batches(size))
    for first in chunks:
        yield _merged(preprocessor, chain([first], islice(chunks, per_group - 1)))


@outplay.remote
def _task(shared: tuple[Preprocessor, Any, list[str], int, int], start: int, stop: int) -> list[ByColumn]:
    preprocessor, dataset, names, size, per_group = shared
    return list(_by_group(preprocessor, dataset.rows(start, min(stop, len(dataset))), names, size, per_group))


def _merged(preprocessor: Preprocessor, partials: Iterator[ByColumn]) -> ByColumn:
    def both(a: ByColumn, b: ByColumn) -> ByColumn:
        return {name: _checked(preprocessor, name, preprocessor.merged(a[name], b[name])) for name in a}

    return functools.reduce(both, partials)


def _checked(preprocessor: Preprocessor, name: str, found: Statistics) -> Statistics:
    if len(found.get("values", ())) > _MOST_VALUES:
        raise DataError(
            f"{type(preprocessor).__name__}: {column(name)} has more than {_MOST_VALUES:,} different values, which "
            "are too many to be counted; choose columns of categories"
        )
    return found
