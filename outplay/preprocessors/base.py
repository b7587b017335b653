"""Preprocessor: fitted to data, then applied to it; the base of all preprocessors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from outplay.arguments import column, column_names, file_path, integer, real
from outplay.errors import ConfigError, DataError, nearest
from outplay.preprocessors.parallel import statistics_of
from outplay.preprocessors.statistics import Array, Statistics

if TYPE_CHECKING:
    from gymnasium import Space

    from outplay.preprocessors.modules import Op, Preprocessing
    from outplay.spaces import Leaf

Rows = dict[str, Array]
D = TypeVar("D")

ARRAY = ""  # the name of the only column of a plain array, and of an observation that is no Dict or Tuple
KINDS: dict[str, type[Preprocessor]] = {}


class Preprocessor(ABC):
    """Learns from data (`fit`) how to convert it (`transform`).

    Data is an `outplay.data.Dataset`, a dict of arrays by column, or one array; rows are the first axis. The result is
    of the same kind. A Dataset is transformed when it is read.

    >>> scaler = StandardScaler(["height"]).fit(dataset)
    >>> scaler.transform({"height": np.array([1.8])})
    """

    needs_fit: ClassVar[bool] = True
    accepts: ClassVar[str] = "biuf"  # kinds of dtypes
    state: ClassVar[tuple[str, ...]] = ()  # names of what `learned` returns, if files are checked for them

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        """`columns`: those that are converted; default: all that can be."""
        self.columns = column_names(columns, type(self).__name__)
        self.fitted: dict[str, Statistics] | None = None  # what was learned, by column

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls

    # What a subclass defines.

    def partial(self, column: Array) -> Statistics:  # noqa: ARG002 - if nothing is learned
        """The statistics of some rows of a column."""
        return {}

    def merged(self, a: Statistics, b: Statistics) -> Statistics:  # noqa: ARG002
        """The statistics of the rows of both."""
        return {}

    def learned(self, statistics: Statistics, name: str) -> Statistics:  # noqa: ARG002
        """What `convert` needs, from the statistics of all rows."""
        return statistics

    @abstractmethod
    def convert(self, column: Array, learned: Statistics, name: str) -> Array:
        """A column, converted."""

    def invert(self, column: Array, learned: Statistics, name: str) -> Array:  # noqa: ARG002
        """The column that was converted."""
        raise ConfigError(f"{type(self).__name__} has no inverse")

    def op(self, space: Space[Any], learned: Statistics, name: str) -> Op:  # noqa: ARG002
        """The same as a torch module, for observations of this space."""
        raise ConfigError(f"{type(self).__name__} cannot be used for observations")

    def check_learned(self, learned: Statistics) -> None:  # noqa: B027 - not all learn something
        """Raise ValueError if what was read from a file cannot be what `learned` has returned."""

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, as plain values."""
        return {"columns": self.columns}

    # What a user calls.

    @property
    def is_fitted(self) -> bool:
        return self.fitted is not None or not self.needs_fit

    def fit(self, data: Any, num_tasks: int | None = None, task_cpus: float = 1.0) -> Self:
        """Learn from all rows. A Dataset is read block by block, in parallel tasks of the engine if one runs.

        The result does not depend on `num_tasks`. Default: as many as there are CPUs; 1: here. `task_cpus`: what each
        task takes; in a trial with less than one CPU, no more than it has.
        """
        check_tasks(num_tasks, task_cpus)
        if not self.needs_fit:
            return self
        rows, _ = as_rows(data)
        names = self._chosen(rows)
        if isinstance(array := rows.get(ARRAY), np.ndarray) and not array.ndim:
            raise DataError(f"{type(self).__name__} takes rows, not one value")
        found = statistics_of(self, rows, names, num_tasks, task_cpus)
        self.fitted = {name: self.learned(found[name], name) for name in names}
        return self

    def transform(self, data: D) -> D:
        """Convert data."""
        found: D = self._applied(data, self.transform, "convert")
        return found

    def fit_transform(self, data: D, num_tasks: int | None = None) -> D:
        """`fit`, then `transform`."""
        return self.fit(data, num_tasks).transform(data)

    def inverse_transform(self, data: D) -> D:
        """Undo `transform`, as far as nothing was lost."""
        found: D = self._applied(data, self.inverse_transform, "invert")
        return found

    def _applied(self, data: Any, whole: Any, method: str) -> Any:
        self.check_fitted()
        if is_dataset(data):
            return data.map_batches(whole)
        rows, is_array = as_rows(data)
        found = dict(rows)
        for name in self.present(rows):
            if method == "convert":
                self.check_type(rows[name].dtype, name)
            found[name] = getattr(self, method)(rows[name], self.learned_of(name), name)
        return found[ARRAY] if is_array else found

    def present(self, rows: Mapping[str, Array]) -> list[str]:
        """The columns that are converted. A plain array is the only column, whatever the fitted column is called."""
        names = list(self.fitted) if self.fitted is not None else self._chosen(rows)
        if list(rows) == [ARRAY] and len(names) == 1:
            return [ARRAY]
        check_present(names, rows, type(self).__name__)
        return names

    def learned_of(self, name: str) -> Statistics:
        """What was learned of a column."""
        if self.fitted is None:
            return {}
        return self.fitted[name] if name in self.fitted else next(iter(self.fitted.values()))

    def check_fitted(self) -> None:
        if not self.is_fitted:
            raise ConfigError(f"{type(self).__name__} is not fitted; call fit(data) first")

    def _chosen(self, rows: Mapping[str, Any]) -> list[str]:
        """The columns to convert. Raises DataError if one is missing, or has a wrong type."""
        if self.columns is None or list(rows) == [ARRAY]:
            names = [name for name, column in rows.items() if np.dtype(column.dtype).kind in self.accepts]
            if not names:
                if ARRAY in rows:
                    self.check_type(rows[ARRAY].dtype, ARRAY)
                raise DataError(f"{type(self).__name__}: there is no column that it could convert")
            return names
        check_present(self.columns, rows, type(self).__name__)
        for name in self.columns:
            self.check_type(rows[name].dtype, name)
        return list(self.columns)

    def check_type(self, dtype: Any, name: str) -> None:
        """Raise DataError if a column of this type cannot be converted."""
        if np.dtype(dtype).kind not in self.accepts:
            kinds = "numbers or strings" if "U" in self.accepts else "numbers"
            raise DataError(
                f"{type(self).__name__} cannot convert {column(name)} of type {dtype}; it takes arrays of {kinds}"
            )

    def ops(self, path: str, space: Space[Any]) -> list[Op]:
        """The torch modules for the part of an observation with this name; [] if it stays as it is."""
        self.check_fitted()
        names = list(self.fitted) if self.fitted is not None else self.columns
        if names is None:
            return [self.op(space, {}, path)]
        column = column_of(path, names)
        return [] if column is None else [self.op(space, self.learned_of(column), path)]

    def module(self, leaves: tuple[Leaf, ...]) -> Preprocessing:
        """The preprocessor as a torch module, for observations with these leaves."""
        from outplay.preprocessors.modules import Preprocessing

        return Preprocessing(self, leaves)

    # Files.

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, for JSON."""
        from outplay.preprocessors.files import plain_statistics

        fitted = None if self.fitted is None else {name: plain_statistics(s) for name, s in self.fitted.items()}
        return {"type": type(self).__name__, "arguments": self.arguments(), "fitted": fitted}

    def load_fitted(self, found: Any) -> None:
        """Take what `to_dict` has written as "fitted"."""
        from outplay.preprocessors.files import statistics_from

        if found is None:
            self.fitted = None
            return
        fitted = {name: statistics_from(each) for name, each in found.items()}
        if not fitted:
            raise ValueError("it was fitted to no column")
        for name, learned in fitted.items():
            if self.state and set(learned) != set(self.state):
                raise ValueError(f"{column(name)} has {sorted(learned)}, not {sorted(self.state)}")
            self.check_learned(learned)
        self.fitted = fitted

    def save(self, path: str | Path) -> None:
        """Write a file: JSON, or safetensors if its name ends so."""
        from outplay.preprocessors.files import save

        save(self, file_path(path, "path").expanduser())

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments().items() if value is not None)
        return f"{type(self).__name__}({given})"


def column_of(path: str, names: Sequence[str]) -> str | None:
    """The column that is the part `path` of an observation. Recorded data has it as "observation.<path>"."""
    recorded = f"observation.{path}" if path else "observation"
    found = [name for name in names if name in (path, recorded)]
    if path == ARRAY and len(names) == 1:
        found = list(names)
    return found[0] if found else None


def is_dataset(data: Any) -> bool:
    return callable(getattr(data, "map_batches", None))


def as_rows(data: Any) -> tuple[Any, bool]:
    """(columns by name, whether the data is a plain array). For a Dataset: the Dataset, as a mapping of its columns."""
    if is_dataset(data):
        return DatasetRows(data), False
    if isinstance(data, Mapping):
        return {str(name): _array(values, str(name)) for name, values in data.items()}, False
    return {ARRAY: _array(data, ARRAY)}, True


def _array(values: Any, name: str) -> Array:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise DataError(f"{column(name)} has rows of different shapes") from error


def check_present(names: Iterable[str], rows: Mapping[str, Any], who: str) -> None:
    """Raise DataError if a column is missing."""
    for name in names:
        if name not in rows:
            if list(rows) == [ARRAY]:
                raise DataError(f"{who} takes a dict of arrays with the columns {', '.join(names)}, not one array")
            raise DataError(f"{who}: there is no column {name!r}{nearest(name, list(rows))}")


def check_tasks(num_tasks: Any, task_cpus: Any) -> None:
    """Raise ConfigError for wrong arguments of `fit`."""
    if num_tasks is not None:
        integer(num_tasks, "fit: num_tasks", 1)
    real(task_cpus, "fit: task_cpus", 0)


def check_finite(learned: Statistics, kinds: str) -> None:
    """Raise ValueError for arrays of other types, NaN and infinite values."""
    for name, array in learned.items():
        if array.dtype.kind not in kinds:
            raise ValueError(f"{name} has the type {array.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{name} has NaN or infinite values")


class DatasetRows(dict[str, Any]):
    """A Dataset as a mapping from the names of its columns to their types."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset.columns)
        self.dataset = dataset
