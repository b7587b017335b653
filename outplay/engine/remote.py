"""`@outplay.remote`: functions become tasks, classes become actors.

Types: `f.remote(…)` takes the parameters of `f` and returns a Ref of its result. An argument may be a Ref of a value
instead, which Python's types cannot express for any number of parameters. So type checkers accept all calls with a Ref
among the first four arguments. The engine checks each call when it is made.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from outplay.engine.base import Callee, Method, Ref
from outplay.engine.options import Options
from outplay.engine.parameters import Parameters, with_kinds
from outplay.engine.typed import TypedSignature
from outplay.errors import nearest

P = ParamSpec("P")
R = TypeVar("R")
X_co = TypeVar("X_co", covariant=True)  # what a call returns: a Ref, or a list of them


class _Class(Protocol[P]):
    """A class, for type checkers: other callables have no `mro`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> object: ...
    def mro(self) -> list[type]: ...


class _Decorator(Protocol):
    """`remote(…)` with options."""

    @overload
    def __call__(self, target: _Class[P], /) -> RemoteClass[P]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[P, R], /) -> RemoteFunction[P, Ref[R]]: ...


@overload
def remote(target: _Class[P], /) -> RemoteClass[P]: ...  # type: ignore[overload-overlap] # a class is a Callable, too
@overload
def remote(target: Callable[P, R], /) -> RemoteFunction[P, Ref[R]]: ...
@overload
def remote(*, num_returns: int, **options: Any) -> Callable[[Callable[P, Any]], RemoteFunction[P, Any]]: ...
@overload
def remote(**options: Any) -> _Decorator: ...
def remote(*args: Any, **options: Any) -> Any:
    """Decorator: a function becomes a task, a class becomes an actor.

    >>> @outplay.remote
    ... def gradient(model, seed): ...
    >>> @outplay.remote(num_cpus=1, max_restarts=2)
    ... class Player: ...
    >>> ref = gradient.remote(model, 0)
    >>> player = Player.remote()
    """
    if len(args) == 1 and not options and callable(args[0]):
        return _declare(args[0], {})
    if args:
        given = type(args[0]).__name__
        raise TypeError(f"@outplay.remote takes a function or a class, not {given}; options are keyword arguments")
    return lambda target: _declare(target, options)


def _declare(target: Any, options: dict[str, Any]) -> RemoteFunction[..., Any] | RemoteClass[...]:
    if isinstance(target, (RemoteFunction, RemoteClass)):
        raise TypeError(f"{target._callee.name} is already remote")
    if inspect.isclass(target):
        checked = Options().updated("class", options)
        return RemoteClass(_class_callee(target, checked.typed), checked)
    if inspect.iscoroutinefunction(target) or inspect.isgeneratorfunction(target):
        raise TypeError(f"{target.__qualname__} is a coroutine or generator; remote functions must be plain functions")
    if not callable(target):
        raise TypeError(f"@outplay.remote takes a function or a class, not {target!r}")
    checked = Options().updated("function", options)
    name = getattr(target, "__qualname__", type(target).__name__)
    signature = TypedSignature.of(target, name) if checked.typed else None
    return RemoteFunction(Callee(target, name, Parameters.of(target), signature), checked)


def _class_callee(cls: type, typed: bool) -> Callee:
    methods: dict[str, Method] = {}
    for name in dir(cls):
        raw = inspect.getattr_static(cls, name)
        special = name.startswith("__") and name != "__call__"
        if special or not callable(getattr(cls, name)) or isinstance(raw, type):
            continue
        if inspect.iscoroutinefunction(raw) or inspect.isgeneratorfunction(raw):
            raise TypeError(f"{cls.__qualname__}.{name} is a coroutine or generator; methods of actors must be plain")
        bound = not isinstance(raw, staticmethod) and not isinstance(raw, classmethod)
        function = getattr(cls, name)
        signature = (
            TypedSignature.of(function, f"{cls.__qualname__}.{name}", method=bound)
            if typed and inspect.isroutine(function) and inspect.isfunction(inspect.unwrap(function))
            else None
        )
        methods[name] = Method.of(cls, name, signature)
    constructor = inspect.getattr_static(cls, "__init__")
    signature = (
        TypedSignature.of(constructor, cls.__qualname__, method=True)
        if typed and inspect.isfunction(constructor)
        else None
    )
    return Callee(cls, cls.__qualname__, Parameters.of(cls), signature, methods)


def _check_call(what: Callee | Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if what.signature is not None:
        what.signature.check_call(args, kwargs, _type_behind)
    elif what.parameters is not None and (problem := what.parameters.mismatch(args, kwargs)) is not None:
        raise TypeError(f"{what.full_name}(): {problem}")


def _type_behind(value: Any) -> Any:
    return value._type if isinstance(value, Ref) else None


def _one_or_all(refs: list[Ref]) -> Any:
    return refs[0] if len(refs) == 1 else refs


class RemoteFunction(Generic[P, X_co]):
    """A function that runs as a task. `f.remote(…)` returns one Ref, or a list of `num_returns` Refs, at once."""

    def __init__(self, callee: Callee, options: Options) -> None:
        self._callee = callee
        self._options = options
        functools.update_wrapper(self, callee.target, updated=())

    @overload
    def remote(self, *args: P.args, **kwargs: P.kwargs) -> X_co: ...
    @overload
    def remote(self, a: Ref[Any], /, *args: Any, **kwargs: Any) -> X_co: ...
    @overload
    def remote(self, a: Any, b: Ref[Any], /, *args: Any, **kwargs: Any) -> X_co: ...
    @overload
    def remote(self, a: Any, b: Any, c: Ref[Any], /, *args: Any, **kwargs: Any) -> X_co: ...
    @overload
    def remote(self, a: Any, b: Any, c: Any, d: Ref[Any], /, *args: Any, **kwargs: Any) -> X_co: ...
    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Start a task. An argument may be a Ref: the task gets its value."""
        from outplay.engine import api

        _check_call(self._callee, args, kwargs)
        return _one_or_all(api.engine().submit(self._callee, args, kwargs, self._options))

    @overload
    def options(self, *, num_returns: int, **options: Any) -> RemoteFunction[P, Any]: ...
    @overload
    def options(self, **options: Any) -> RemoteFunction[P, X_co]: ...
    def options(self, **options: Any) -> RemoteFunction[P, Any]:
        """A copy of the function with other options."""
        changed = self._options.updated("function", options)
        callee = self._callee
        if changed.typed != self._options.typed:
            signature = TypedSignature.of(callee.target, callee.name) if changed.typed else None
            callee = Callee(callee.target, callee.name, callee.parameters, signature, exports=callee.exports)
        return RemoteFunction(callee, changed)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self._callee.name} is remote: call {self._callee.name}.remote(…)")

    def __repr__(self) -> str:
        return f"<remote function {self._callee.name}>"


class RemoteClass(Generic[P]):
    """A class whose instances are actors. `Player.remote(…)` returns a handle at once."""

    def __init__(self, callee: Callee, options: Options) -> None:
        self._callee = callee
        self._options = options
        functools.update_wrapper(self, callee.target, updated=())

    @overload
    def remote(self, *args: P.args, **kwargs: P.kwargs) -> ActorHandle: ...
    @overload
    def remote(self, a: Ref[Any], /, *args: Any, **kwargs: Any) -> ActorHandle: ...
    @overload
    def remote(self, a: Any, b: Ref[Any], /, *args: Any, **kwargs: Any) -> ActorHandle: ...
    @overload
    def remote(self, a: Any, b: Any, c: Ref[Any], /, *args: Any, **kwargs: Any) -> ActorHandle: ...
    @overload
    def remote(self, a: Any, b: Any, c: Any, d: Ref[Any], /, *args: Any, **kwargs: Any) -> ActorHandle: ...
    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Start an actor. An argument may be a Ref: the constructor gets its value."""
        from outplay.engine import api

        _check_call(self._callee, args, kwargs)
        token = api.engine().create(self._callee, args, kwargs, self._options)
        return ActorHandle(token, self._callee.name, self._callee.methods)

    def options(self, **options: Any) -> RemoteClass[P]:
        """A copy of the class with other options."""
        changed = self._options.updated("class", options)
        callee = self._callee
        if changed.typed != self._options.typed:
            callee = _class_callee(callee.target, changed.typed)
        return RemoteClass(callee, changed)

    def __getattr__(self, name: str) -> Any:
        """Class attributes, static and class methods. In methods of the class, its name refers to this object too."""
        if name.startswith("__") or name == "_callee":  # missing while this object is unpickled
            raise AttributeError(name)
        return getattr(self._callee.target, name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self._callee.name} is remote: call {self._callee.name}.remote(…)")

    def __mro_entries__(self, _: Any) -> Any:
        raise TypeError(f"{self._callee.name} is remote; inherit from the plain class, and make the subclass remote")

    def __repr__(self) -> str:
        return f"<remote class {self._callee.name}>"


if TYPE_CHECKING:

    class RemoteClassType(type):
        """The type of a class under `@outplay.remote`, for outplay.mypy. At run time that class is a RemoteClass."""

        @overload
        def remote(cls: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> ActorHandle: ...
        @overload
        def remote(cls, a: Ref[Any], /, *args: Any, **kwargs: Any) -> ActorHandle: ...
        @overload
        def remote(cls, a: Any, b: Ref[Any], /, *args: Any, **kwargs: Any) -> ActorHandle: ...
        @overload
        def remote(cls, a: Any, b: Any, c: Ref[Any], /, *args: Any, **kwargs: Any) -> ActorHandle: ...
        @overload
        def remote(cls, a: Any, b: Any, c: Any, d: Ref[Any], /, *args: Any, **kwargs: Any) -> ActorHandle: ...
        def remote(cls, *args: Any, **kwargs: Any) -> ActorHandle: ...

        def options(cls: Callable[P, Any], **options: Any) -> RemoteClass[P]: ...


class ActorHandle:
    """A handle of an actor: `handle.method.remote(…)`. The actor ends when its last handle is deleted."""

    def __init__(self, token: Any, name: str, methods: dict[str, Method]) -> None:
        self._token = token
        self._name = name
        self._methods = methods

    def __getattr__(self, name: str) -> ActorMethod[Ref[Any]]:
        if name.startswith("__") and name != "__call__":
            raise AttributeError(name)
        if name not in self._methods:
            raise AttributeError(f"actor {self._name} has no method {name!r}{nearest(name, self._methods)}")
        return ActorMethod(self, self._methods[name], 1)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            raise AttributeError(
                f"attributes of an actor cannot be set through a handle; give {self._name} a method for it"
            )
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return list(self._methods)

    def __copy__(self) -> ActorHandle:
        return self

    def __deepcopy__(self, _: object) -> ActorHandle:
        return self

    def __reduce__(self) -> Any:
        # Plain tuples: handles are pickled often, and other objects take several times as long.
        methods = [(m.name, m.parameters and m.parameters.kinds, m.signature) for m in self._methods.values()]
        return _rebuild_handle, (self._token, self._name, methods)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and bool(self._token == other._token)

    def __hash__(self) -> int:
        return hash(self._token)

    def __repr__(self) -> str:
        return f"<actor {self._name}>"


def _rebuild_handle(token: Any, name: str, methods: list[Any]) -> ActorHandle:
    rebuilt = {
        method: Method(name, method, None if kinds is None else with_kinds(kinds), signature)
        for method, kinds, signature in methods
    }
    return ActorHandle(token, name, rebuilt)


class ActorMethod(Generic[X_co]):
    """A method of an actor. `handle.method.remote(…)` calls it."""

    __slots__ = ("_handle", "_method", "_num_returns")

    def __init__(self, handle: ActorHandle, method: Method, num_returns: int) -> None:
        self._handle = handle
        self._method = method
        self._num_returns = num_returns

    def remote(self, *args: Any, **kwargs: Any) -> X_co:
        from outplay.engine import api

        _check_call(self._method, args, kwargs)
        refs = api.engine().call(self._handle._token, self._method, args, kwargs, self._num_returns)
        return _one_or_all(refs)  # type: ignore[no-any-return]

    def options(self, **options: Any) -> ActorMethod[Any]:
        """A copy of the method with another number of results: `.options(num_returns=2)`."""
        num_returns = Options(num_returns=self._num_returns).updated("method", options).num_returns
        return ActorMethod(self._handle, self._method, num_returns)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self._method.full_name} is remote: call handle.{self._method.name}.remote(…)")
