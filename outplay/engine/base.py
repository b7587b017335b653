"""The Engine protocol, and the types that all engines share.

ref = engine.put(model)
refs = engine.submit(callee, args, kwargs, options)          # a task
token = engine.create(callee, args, kwargs, options)         # an actor
refs = engine.call(token, method, args, kwargs, options)     # a call of one of its methods
values = engine.get(refs, timeout)
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar

from outplay.engine import serialize
from outplay.engine.options import Options, Reservation
from outplay.engine.parameters import Parameters
from outplay.engine.typed import UNKNOWN, TypedSignature
from outplay.errors import RemoteExceptionStandIn, TaskError, TypeMismatchError, nearest

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultingTypeVar

    T_co = DefaultingTypeVar("T_co", covariant=True, default=Any)  # Python has defaults from 3.13 on
else:
    T_co = TypeVar("T_co", covariant=True)


class Ref(Generic[T_co]):
    """A reference to an object in the engine's store: the future result of a call, or an object stored by `put`.

    For type checkers, `Ref[int]` refers to an integer.
    """

    __slots__ = ("__weakref__", "_type")
    _type: Any  # the type of the object, or UNKNOWN

    if TYPE_CHECKING:  # defined by the Ref class of each engine

        @property
        def id(self) -> Hashable: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and type(self) is type(other) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: object) -> Self:
        return self

    def __repr__(self) -> str:
        shown = f"{self.id:x}" if isinstance(self.id, int) else str(self.id)
        return f"Ref({shown})"


@dataclass(eq=False)
class Callee:
    """A remote function or class. One per declaration: engines cache their exports in it."""

    target: Any
    name: str
    parameters: Parameters | None = None  # of the function, or of the constructor
    signature: TypedSignature | None = None  # with `typed=True`
    methods: dict[str, Method] = field(default_factory=dict)
    exports: dict[Any, Any] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        return self.name

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "exports": {}}

    def interface(self) -> bytes:
        """The pickled Callee without its code: all that a handle of an actor needs."""
        return serialize.function_bytes(replace(self, target=None, exports={}), self.target)

    def pack(self) -> serialize.Exported:
        """The Callee with its code and the `sys.path` of this process, pickled."""
        return serialize.export((list(sys.path), self), self.target)


class Method(NamedTuple):
    """A method of an actor, with its signature."""

    actor_name: str
    name: str
    parameters: Parameters | None
    signature: TypedSignature | None

    @classmethod
    def of(cls, owner: type, name: str, signature: TypedSignature | None) -> Method:
        return cls(owner.__qualname__, name, Parameters.of_method(owner, name), signature)

    @property
    def full_name(self) -> str:
        return f"{self.actor_name}.{self.name}"


class Engine(Protocol):
    """Runs tasks and actors. The engines `inline`, `process` and `ray` have the same semantics."""

    name: str

    def put(self, value: Any) -> Ref: ...
    def get(self, refs: list[Ref], timeout: float | None) -> list[Any]: ...
    def wait(self, refs: list[Ref], num_returns: int, timeout: float | None) -> tuple[list[Ref], list[Ref]]: ...
    def submit(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> list[Ref]: ...
    def create(self, callee: Callee, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Any: ...
    def call(
        self, token: Any, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], num_returns: int
    ) -> list[Ref]: ...
    def kill(self, token: Any) -> None: ...
    def cancel(self, ref: Ref, force: bool) -> None: ...
    def get_actor(self, name: str) -> tuple[Any, Callee]: ...
    def reserve(self, bundles: tuple[tuple[float, float], ...], timeout: float | None) -> Reservation: ...
    def release(self, reservation: Reservation) -> None: ...
    def nodes(self) -> list[dict[str, Any]]: ...
    def available_resources(self) -> dict[str, float]: ...
    def shutdown(self) -> None: ...
    def is_inside_call(self) -> bool: ...
    def join_call(self) -> None: ...


def method_of(instance: Any, name: str) -> Callable[..., Any]:
    """A method of an actor, even if the instance has an attribute with the same name."""
    if name in getattr(instance, "__dict__", ()):
        for cls in type(instance).__mro__:
            if name in cls.__dict__:
                found: Callable[..., Any] = cls.__dict__[name].__get__(instance, type(instance))
                return found
    function: Callable[..., Any] = getattr(instance, name)
    return function


def result_types(signature: TypedSignature | None, num_returns: int) -> list[Any]:
    return [UNKNOWN] * num_returns if signature is None else signature.result_types(num_returns)


class Attempt:
    """A guard for `invoke` that records the exception of the function."""

    raised: BaseException | None = None

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self.raised = error


_NO_GUARD = nullcontext()


def invoke(
    name: str,
    function: Callable[..., Any],
    arguments: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]],
    num_returns: int,
    signature: TypedSignature | None,
    passes: tuple[type[BaseException], ...] = (),
    guard: AbstractContextManager[object] = _NO_GUARD,
) -> list[Any]:
    """Run remote code and return its results, one per Ref. Raises only TaskError or TypeMismatchError.

    arguments  returns the arguments; called here because unpickling them imports the user's modules
    passes     exceptions that are not converted to TaskError: sys.exit() in an actor; Ctrl-C with `inline`
    guard      entered while the function runs; sees the exceptions that it raises
    """
    try:
        args, kwargs = arguments()
    except passes:
        raise
    except BaseException as error:  # noqa: BLE001 - any exception of user code, including SystemExit
        if isinstance(error, CarriedError):
            raise error.original from None
        failure = task_error(name, error, error.__traceback__)
        raise failure from failure.cause
    if signature is not None:
        signature.check_call(args, kwargs)
    try:
        with guard:
            value = function(*args, **kwargs)
        results = split(name, value, num_returns)
    except passes:
        raise
    except BaseException as error:  # noqa: BLE001 - as above
        failure = task_error(name, error, error.__traceback__.tb_next if error.__traceback__ else None)
        raise failure from failure.cause
    if signature is not None:
        signature.check_results(results)
    return results


@functools.lru_cache(maxsize=256)
def packed_types(types: tuple[type[BaseException], ...]) -> bytes:
    """Exception types, pickled."""
    return serialize.function_bytes(types, *types) if types else b""


class CarriedError(Exception):
    """The object of an argument's Ref is an error: the call fails with that error, as `get` would."""

    def __init__(self, original: BaseException) -> None:
        super().__init__(original)
        self.original = original


def name_taken(name: str) -> ValueError:
    return ValueError(
        f"an actor named {name!r} exists already: outplay.get_actor({name!r}) returns it, outplay.kill ends it"
    )


def no_actor(name: str, living: Iterable[str]) -> ValueError:
    names = list(living)
    return ValueError(f"no living actor is named {name!r}" + (nearest(name, names) if names else ""))


def force_refused(name: str) -> ValueError:
    return ValueError(
        f"{name} is a method of an actor, and force=True would kill the actor; for that, use outplay.kill(handle)"
    )


def split(name: str, value: Any, num_returns: int) -> list[Any]:
    if num_returns == 1:
        return [value]
    if not isinstance(value, (tuple, list)) or len(value) != num_returns:
        given = f"{len(value)} values" if isinstance(value, (tuple, list)) else f"one {type(value).__name__}"
        raise ValueError(f"{name} must return {num_returns} values (num_returns), but returned {given}")
    return list(value)


def task_error(name: str, error: BaseException, trace: TracebackType | None) -> TaskError:
    text = "".join(traceback.format_exception(type(error), error, trace))
    return TaskError(name, text, sendable(error))


def sendable(error: BaseException) -> BaseException:
    """`error` itself if it can be pickled and unpickled, otherwise a replacement with its type and message.

    An exception whose constructor takes other arguments than `args` can be pickled, but not unpickled. That would fail
    in the process of the caller. So both are tried here.
    """
    try:
        packed = serialize.dumps(error, "the exception")
        # The result is not used: an unpickled exception has lost its traceback.
        serialize.loads(packed.data, [bytes(buffer) for buffer in packed.buffers])
    except Exception as reason:  # noqa: BLE001 - this runs the exception's own pickling code
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        return RemoteExceptionStandIn(f"{kind}: {error} (the exception itself cannot be pickled: {reason})")
    return error


__all__ = [
    "Attempt", "Callee", "CarriedError", "Engine", "Method", "Ref", "TypeMismatchError", "force_refused", "invoke",
    "method_of", "name_taken", "no_actor", "result_types", "sendable", "split", "task_error",
]  # fmt: skip
