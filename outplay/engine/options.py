"""The options of `@outplay.remote(…)` and `.options(…)`: one checked, immutable object."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from outplay.errors import ResourceError, nearest

# The options of functions only, of classes only, and of methods. Other names are errors.
_FUNCTION_ONLY = {"num_returns", "max_retries", "retry_exceptions"}
_CLASS_ONLY = {"max_restarts", "max_concurrency", "name", "lends_cpus"}
_METHOD = {"num_returns"}


@dataclass(frozen=True, slots=True)
class Reservation:
    """Resources that are reserved for a group. `outplay.reserve` returns it; `.options(reservation=…)` uses it.

    >>> with outplay.reserve([{"num_cpus": 1}, {"num_cpus": 1}]) as both:
    ...     pair = [Player.options(num_cpus=1, reservation=both).remote() for _ in range(2)]
    """

    id: Any
    bundles: tuple[tuple[float, float], ...]  # (num_cpus, num_gpus) of each

    def release(self) -> None:
        """Release the resources. Tasks and actors that still run in them are killed."""
        from outplay.engine import api

        api.engine().release(self)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a remote function or class. By default, a task takes one CPU slot, an actor none."""

    num_returns: int = 1
    num_cpus: float | None = None
    num_gpus: float = 0
    max_restarts: int = 0
    max_retries: int = 3
    retry_exceptions: bool | list[type[BaseException]] | tuple[type[BaseException], ...] = False
    max_concurrency: int = 1
    name: str | None = None
    typed: bool = False
    reservation: Reservation | None = None
    lends_cpus: bool = False  # on Ray: what the actor starts in its reservation may use the actor's CPUs

    def updated(self, kind: str, given: dict[str, Any]) -> Options:
        """A copy with the options `given` replaced. `kind` is "function", "class" or "method"."""
        known = {field.name for field in fields(self)}
        if kind == "method":
            known = _METHOD
        else:
            known -= _CLASS_ONLY if kind == "function" else _FUNCTION_ONLY
        for name, value in given.items():
            if name not in known:
                raise TypeError(f"a remote {kind} has no option {name!r}{nearest(name, known)}")
            _check(name, value)
        return replace(self, **given)

    def cpus(self, default: float) -> float:
        return default if self.num_cpus is None else float(self.num_cpus)

    @property
    def retry_on(self) -> tuple[type[BaseException], ...]:
        """The exceptions after which a task is retried."""
        if isinstance(self.retry_exceptions, bool):
            return (Exception,) if self.retry_exceptions else ()
        return tuple(self.retry_exceptions)


def _check(name: str, value: Any) -> None:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    match name:
        case "num_returns" | "max_concurrency":
            valid, wanted = is_integer and value >= 1, "an integer of at least 1"
        case "max_restarts" | "max_retries":
            valid, wanted = is_integer and value >= -1, "an integer of at least 0, or -1 for no limit"
        case "num_cpus" | "num_gpus":
            is_number = is_integer or isinstance(value, float)
            valid = (is_number and value >= 0) or (name == "num_cpus" and value is None)
            wanted = "a number of at least 0"
        case "retry_exceptions":
            valid = isinstance(value, bool) or (isinstance(value, (list, tuple)) and all(map(_is_exception, value)))
            wanted = "True, False or a list of exception types"
        case "name":
            valid, wanted = value is None or (isinstance(value, str) and value != ""), "a non-empty string"
        case "typed" | "lends_cpus":
            valid, wanted = isinstance(value, bool), "True or False"
        case _:
            valid = value is None or isinstance(value, Reservation)
            wanted = "a Reservation (see outplay.reserve)"
    if not valid:
        raise ValueError(f"option {name} must be {wanted}, not {value!r}")


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def parse_bundles(bundles: Any) -> tuple[tuple[float, float], ...]:
    """Validate the argument of `outplay.reserve` and convert it to (num_cpus, num_gpus) pairs."""
    if not isinstance(bundles, (list, tuple)) or not bundles:
        raise ValueError(f"reserve() takes a list like [{{'num_cpus': 1}}, …], not {bundles!r}")
    pairs = []
    for position, bundle in enumerate(bundles):
        if not isinstance(bundle, dict):
            raise ValueError(f"bundle {position} of reserve() must be a dict, not {bundle!r}")  # noqa: TRY004
        for name, value in bundle.items():
            if name not in ("num_cpus", "num_gpus"):
                raise ValueError(
                    f"bundle {position} of reserve(): no resource {name!r}"
                    f"{nearest(str(name), ('num_cpus', 'num_gpus'))}"
                )
            if value is None:
                raise ValueError(f"bundle {position} of reserve(): {name} must be a number, not None")
            _check(name, value)
        pairs.append((float(bundle.get("num_cpus", 0)), float(bundle.get("num_gpus", 0))))
    return tuple(pairs)


def check_fits(what: str, cpus: float, gpus: float, room: list[tuple[float, float]], where: str) -> None:
    """Raise ResourceError for a request that can never be met. `room`: the (cpus, gpus) of each machine or bundle."""
    if first_fitting(cpus, gpus, room) is None:
        most = max((place for place in room), default=(0.0, 0.0))
        raise ResourceError(
            f"{what} asks for num_cpus={cpus:g}, num_gpus={gpus:g}, but {where} has at most "
            f"num_cpus={most[0]:g}, num_gpus={most[1]:g}"
        )


def first_fitting(cpus: float, gpus: float, room: list[tuple[float, float]]) -> int | None:
    """The index of the first machine or bundle that is large enough; None if there is none."""
    return next((i for i, (most_cpus, most_gpus) in enumerate(room) if cpus <= most_cpus and gpus <= most_gpus), None)
