"""Several preprocessors as one: one after the other, or one for each column."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from outplay.errors import ConfigError, DataError
from outplay.preprocessors.base import ARRAY, Preprocessor, as_rows, check_present, check_tasks, column_of, is_dataset
from outplay.preprocessors.statistics import Array, Statistics

if TYPE_CHECKING:
    from gymnasium import Space

    from outplay.preprocessors.modules import Op

D = TypeVar("D")


class _Composite(Preprocessor):
    """A preprocessor made of others, which have learned everything."""

    @abstractmethod
    def parts(self) -> list[Preprocessor]: ...

    @property
    def is_fitted(self) -> bool:
        return all(part.is_fitted for part in self.parts())

    def check_fitted(self) -> None:
        for part in self.parts():
            part.check_fitted()

    def convert(self, column: Array, learned: Statistics, name: str) -> Array:  # noqa: ARG002
        raise TypeError(f"{type(self).__name__} has no values of its own: its parts convert")

    def load_fitted(self, found: Any) -> None:
        """The parts are arguments, and have been read with them."""


def _checked(parts: Any, who: str) -> None:
    if not parts:
        raise ConfigError(f"{who} needs at least one preprocessor")
    for part in parts:
        if not isinstance(part, Preprocessor):
            raise ConfigError(f"{who} takes preprocessors, not {part!r}")


class Chain(_Composite):
    """Preprocessors one after the other. Each is fitted to what those before it return.

    >>> Chain(SimpleImputer(), StandardScaler()).fit(dataset)
    """

    def __init__(self, *preprocessors: Preprocessor) -> None:
        super().__init__()
        _checked(preprocessors, "Chain")
        self.preprocessors = list(preprocessors)

    def parts(self) -> list[Preprocessor]:
        return self.preprocessors

    def arguments(self) -> dict[str, Any]:
        return {"preprocessors": [part.to_dict() for part in self.preprocessors]}

    def fit(self, data: Any, num_tasks: int | None = None, task_cpus: float = 1.0) -> Self:
        check_tasks(num_tasks, task_cpus)
        last = max((i for i, part in enumerate(self.preprocessors) if part.needs_fit), default=-1)
        for part in self.preprocessors[: last + 1]:
            data = part.fit(data, num_tasks, task_cpus).transform(data)
        return self

    def transform(self, data: D) -> D:
        for part in self.preprocessors:
            data = part.transform(data)
        return data

    def inverse_transform(self, data: D) -> D:
        for part in reversed(self.preprocessors):
            data = part.inverse_transform(data)
        return data

    def ops(self, path: str, space: Space[Any]) -> list[Op]:
        found: list[Op] = []
        for part in self.preprocessors:
            for op in part.ops(path, space):
                found.append(op)
                space = op.space
        return found

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self.preprocessors))})"


class ByKey(_Composite):
    """A preprocessor for each column, or for each part of a Dict observation. Other parts stay as they are.

    >>> ByKey({"camera": Chain(Grayscale(), Resize(84, 84)), "speed": StandardScaler()}).fit(dataset)

    A part of a nested Dict is named by its keys with "." between them: "arm.angle".
    """

    def __init__(self, preprocessors: Mapping[str, Preprocessor]) -> None:
        super().__init__()
        if not isinstance(preprocessors, Mapping):
            raise ConfigError(f"ByKey takes a dict of preprocessors by column, not {preprocessors!r}")
        _checked(preprocessors.values(), "ByKey")
        self.preprocessors = {str(name): part for name, part in preprocessors.items()}

    def parts(self) -> list[Preprocessor]:
        return list(self.preprocessors.values())

    def arguments(self) -> dict[str, Any]:
        return {"preprocessors": {name: part.to_dict() for name, part in self.preprocessors.items()}}

    def fit(self, data: Any, num_tasks: int | None = None, task_cpus: float = 1.0) -> Self:
        check_tasks(num_tasks, task_cpus)
        rows, _ = as_rows(data)
        check_present(self.preprocessors, rows, "ByKey")
        for name, part in self.preprocessors.items():
            own = data.select([name]).map_batches(_Renamed(name)) if is_dataset(data) else rows[name]
            with _naming(name):
                part.fit(own, num_tasks, task_cpus)
        return self

    def transform(self, data: D) -> D:
        found: D = self._each(data, "transform")
        return found

    def inverse_transform(self, data: D) -> D:
        found: D = self._each(data, "inverse_transform")
        return found

    def _each(self, data: Any, method: str) -> Any:
        if is_dataset(data):
            return data.map_batches(getattr(self, method))
        if not isinstance(data, Mapping):
            raise DataError("ByKey takes a dict of arrays by column, or a Dataset")
        rows = dict(as_rows(data)[0])
        check_present(self.preprocessors, rows, "ByKey")
        for name, part in self.preprocessors.items():
            with _naming(name):
                rows[name] = getattr(part, method)(rows[name])
        return rows

    def ops(self, path: str, space: Space[Any]) -> list[Op]:
        column = column_of(path, list(self.preprocessors))
        return [] if column is None else self.preprocessors[column].ops(ARRAY, space)

    def __repr__(self) -> str:
        return f"ByKey({self.preprocessors!r})"


@contextmanager
def _naming(column: str) -> Iterator[None]:
    """Say in errors which column it was: a part gets it as an array, which has no name."""
    try:
        yield
    except DataError as error:
        raise DataError(f"column {column!r}: {error}") from error


class _Renamed:
    """The column `name` alone, as a plain array has it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        return {ARRAY: rows[self._name]}
