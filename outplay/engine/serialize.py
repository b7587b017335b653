"""Serialises objects, for all engines.

Buffers (numpy arrays, tensors) are kept out of the pickle stream, so that they can be written to shared memory once and
read as views. Functions and classes of the main module are pickled by value: workers do not import it.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from outplay.errors import SerializationError

ALIGNMENT = 64  # bytes: a cache line, and the widest vector instructions
_PLAIN = {type(None), bool, int, float, str, bytes}
_LARGE = 64 * 1024  # pickle writes bytes objects of this size to a file without copying them


class Packed(NamedTuple):
    """A serialised object: the pickle stream, its buffers, and the Refs and handles inside it."""

    stream: list[Any]  # in pieces: each large bytes object is one piece, which is not copied
    buffers: list[memoryview]
    writable: frozenset[int]  # the buffers of tensors, which cannot be read-only
    carried: list[Any]

    @property
    def data(self) -> bytes:
        """The pickle stream in one piece."""
        return b"".join(self.stream)

    @property
    def stream_nbytes(self) -> int:
        return sum(map(len, self.stream))

    @property
    def nbytes(self) -> int:
        return self.stream_nbytes + sum(buffer.nbytes for buffer in self.buffers)


_NO_ARGUMENTS = Packed([pickle.dumps(((), {}), protocol=5)], [], frozenset(), [])


class Exported(NamedTuple):
    """Pickled code: its name (a hash), its bytes, and the Refs and handles that it has captured."""

    name: str
    data: bytes
    captured: list[Any]

    def load(self) -> Any:
        _load.captured = self.captured
        return loads(self.data, [])


class _Dump(threading.local):
    """The state of the `dumps` that runs in this thread."""

    carried: list[Any] | None = None
    tensors: list[pickle.PickleBuffer] | None = None
    exports: bool = False  # whether code is pickled


class _Load(threading.local):
    captured: list[Any]  # the Refs and handles that the code has captured


_load = _Load()


_dump = _Dump()
_custom: dict[type, Callable[[Any], Any]] = {}
_tensors: dict[type, Callable[[Any], Any]] = {}


def register(cls: type, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]) -> None:
    """Pickle `serializer(object)` instead of instances of `cls`. `deserializer` recreates them."""
    _custom[cls] = lambda instance: (deserializer, (serializer(instance),))


def carry(item: Any) -> None:
    """Record a Ref or handle in the running `dumps`. Called by the Ref or handle while it is pickled."""
    if _dump.carried is None:
        raise SerializationError(
            "a Ref or actor handle can only be pickled inside calls of the engine (remote, put); elsewhere, it would "
            "not keep its object or actor alive"
        )
    _dump.carried.append(item)


def capture(item: Any, item_id: str) -> Any:
    """Replace a Ray object that code has captured. Called by a RayRef or RayToken while it is pickled.

    Ray counts references in arguments, but not in pickled code. So captured objects are sent as arguments of each call.
    The code has their position and id instead. The id makes the hash of the code depend on what it captured.
    """
    if not _dump.exports:
        return item
    assert _dump.carried is not None
    _dump.carried.append(item)
    return _Captured(len(_dump.carried) - 1, item_id)


class _Captured(NamedTuple):
    position: int
    item_id: str

    def __reduce__(self) -> Any:
        return _captured_item, tuple(self)


def _captured_item(position: int, _: str) -> Any:
    return _load.captured[position]


def dumps(value: Any, what: str) -> Packed:
    """Serialise `value`. Error messages call it `what`."""
    buffers: list[pickle.PickleBuffer] = []
    outer = (_dump.carried, _dump.tensors)
    _dump.carried, _dump.tensors = [], []
    try:
        if _is_plain(value):
            # For these types, the C pickler gives the same result, and is much faster.
            stream: list[Any] = [pickle.dumps(value, protocol=5, buffer_callback=buffers.append)]
        else:
            stream = _cloud_dumps(value, buffers)
        writable = frozenset(i for i, buffer in enumerate(buffers) if any(buffer is t for t in _dump.tensors))
        return Packed(stream, [buffer.raw() for buffer in buffers], writable, _dump.carried)
    except SerializationError:
        raise
    except Exception as error:  # pickling runs the objects' own code, which may raise any exception
        path, culprit = _culprit(value)
        raise SerializationError(
            f"{what} cannot be sent between processes: {path or 'it'} is a {type(culprit).__module__}."
            f"{type(culprit).__qualname__} ({error}). Leave it out, create it where it is used, or register its "
            f"type with outplay.register_serializer"
        ) from error
    finally:
        _dump.carried, _dump.tensors = outer


def dumps_call(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], is_ref: Callable[[Any], bool]
) -> tuple[Packed, list[tuple[int | str, Any]]]:
    """Serialise the arguments of a call. Arguments that are Refs are removed, and returned with their position or name.

    `join_call` inserts the values of the Refs.
    """
    if not args and not kwargs:
        return _NO_ARGUMENTS, []
    refs: list[tuple[int | str, Any]] = [(i, arg) for i, arg in enumerate(args) if is_ref(arg)]
    refs += [(key, arg) for key, arg in kwargs.items() if is_ref(arg)]
    if refs:
        args = tuple(None if is_ref(arg) else arg for arg in args)
        kwargs = {key: None if is_ref(arg) else arg for key, arg in kwargs.items()}
    try:
        return dumps((args, kwargs), f"the arguments of {name}"), refs
    except SerializationError:
        for place, arg in [*enumerate(args), *kwargs.items()]:
            dumps(arg, f"argument {place!r} of {name}")  # raises an error that names the argument
        raise


def join_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], values: list[tuple[int | str, Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not values:
        return args, kwargs
    positional = list(args)
    for place, value in values:
        if isinstance(place, int):
            positional[place] = value
        else:
            kwargs[place] = value
    return tuple(positional), kwargs


def loads(data: Any, buffers: list[Any]) -> Any:
    return pickle.loads(data, buffers=buffers)


def layout(lengths: Sequence[int]) -> tuple[list[int], int]:
    """The offset of each part of an object in memory, and the total size."""
    offsets, end = [], 0
    for length in lengths:
        offsets.append(end)
        end += -(-length // ALIGNMENT) * ALIGNMENT
    return offsets, end


def aligned(buffers: Sequence[Any], writable: Collection[int] = ()) -> list[memoryview]:
    """Copies of buffers, aligned to 64 bytes as in shared memory. Read-only, except for the indices in `writable`."""
    if not buffers:
        return []
    import numpy

    lengths = [memoryview(buffer).nbytes for buffer in buffers]
    offsets, end = layout(lengths)
    block = numpy.empty(end + ALIGNMENT, numpy.uint8)
    start = -block.ctypes.data % ALIGNMENT
    memory = block.data[start:]
    copies = [memory[offset : offset + length] for offset, length in zip(offsets, lengths, strict=True)]
    for copy, buffer in zip(copies, buffers, strict=True):
        copy[:] = buffer
    return [copy if i in writable else copy.toreadonly() for i, copy in enumerate(copies)]


class _Pieces(list[Any]):
    """A file for the pickler that stores each write as one piece."""

    write = list.append


def _cloud_dumps(value: Any, buffers: list[pickle.PickleBuffer]) -> list[Any]:
    pieces = _Pieces()
    _pickler_class()(pieces, protocol=5, buffer_callback=buffers.append).dump(value)
    return pieces


_pickler: Any = None


def _pickler_class() -> Any:
    global _pickler
    if _pickler is None:
        import cloudpickle

        # The pickler reads the table of its class, so later additions to the dictionaries take effect.
        table = ChainMap(_custom, _tensors, cloudpickle.Pickler.dispatch_table)
        _pickler = type("Pickler", (cloudpickle.Pickler,), {"dispatch_table": table})
    torch = sys.modules.get("torch")
    if torch is not None and not _tensors and hasattr(torch, "Tensor"):
        _tensors[torch.Tensor] = _reduce_tensor
    return _pickler


def export(value: Any, *functions: Any) -> Exported:
    """Pickle `value`, which contains these functions and classes."""
    outer = (_dump.carried, _dump.exports)
    _dump.carried, _dump.exports = [], True
    try:
        data = function_bytes(value, *functions)
        return Exported(hashlib.sha256(data).hexdigest()[:32], data, _dump.carried)
    finally:
        _dump.carried, _dump.exports = outer


def function_bytes(value: Any, *functions: Any) -> bytes:
    """Pickle `value`. The functions and classes in it are pickled by value if workers cannot import their modules."""
    import cloudpickle

    with _by_value_if_not_importable(functions):
        try:
            return cast(bytes, cloudpickle.dumps(value, protocol=5))
        except Exception as error:
            names = ", ".join(getattr(function, "__qualname__", repr(function)) for function in functions)
            raise SerializationError(
                f"{names} cannot be sent to workers: {error}. A global or closure variable cannot be pickled; "
                f"create its value inside the function instead"
            ) from error


@contextmanager
def _by_value_if_not_importable(functions: tuple[Any, ...]) -> Iterator[None]:
    import cloudpickle

    names = {getattr(function, "__module__", None) or "" for function in functions} - {"__main__"}
    modules = [module for name in names if (module := sys.modules.get(name)) and not _importable(module)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _importable(module: Any) -> bool:
    """Whether other processes can import `module`. They cannot if a test runner or notebook created it."""
    from importlib.machinery import PathFinder

    path: Any = None
    spec = None
    for name in _prefixes(module.__name__):
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            # Frozen and built-in modules, and those of import hooks, are assumed to be importable.
            return getattr(module, "__file__", None) is None or getattr(module, "__spec__", None) is None
        path = spec.submodule_search_locations
    return spec is not None and spec.origin == getattr(getattr(module, "__spec__", None), "origin", spec.origin)


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _is_plain(value: Any, depth: int = 3) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return kind is not bytes or len(value) < _LARGE
    if kind is dict:
        return depth > 0 and all(type(key) in _PLAIN and _is_plain(item, depth - 1) for key, item in value.items())
    if kind is list or kind is tuple:
        return depth > 0 and len(value) < 1000 and all(_is_plain(item, depth - 1) for item in value)
    numpy = sys.modules.get("numpy")
    return numpy is not None and kind is numpy.ndarray and not value.dtype.hasobject and not _custom


def _reduce_tensor(tensor: Any) -> Any:
    import torch

    ordinary = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
    if not ordinary or tensor.is_conj() or tensor.is_neg() or tensor.numel() == 0:
        return tensor.__reduce_ex__(5)
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    buffer = pickle.PickleBuffer(flat.numpy())
    assert _dump.tensors is not None
    _dump.tensors.append(buffer)
    return _rebuild_tensor, (buffer, tensor.dtype, tuple(tensor.shape), tensor.requires_grad)


def _rebuild_tensor(buffer: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    # A tensor cannot be read-only, so it must not share memory with others. Small tensors are copied here; large ones
    # are in a private (copy-on-write) mapping of the segment.
    source = bytearray(buffer) if memoryview(buffer).readonly else buffer
    tensor = torch.frombuffer(source, dtype=torch.uint8).view(dtype).view(shape)
    return tensor.requires_grad_(requires_grad)


def _culprit(value: Any, path: str = "", depth: int = 4) -> tuple[str, Any]:
    """The innermost part of `value` that cannot be pickled, with its path."""
    if depth > 0:
        for step, part in _parts(value):
            try:
                _probe(part)
            except Exception:  # noqa: BLE001 - any exception means that this part cannot be pickled
                return _culprit(part, path + step, depth - 1)
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"[{i}]", item) for i, item in enumerate(value))
    else:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from ((f".{name}", item) for name, item in attributes.items())
        for name, cell in zip(
            getattr(getattr(value, "__code__", None), "co_freevars", ()),
            getattr(value, "__closure__", None) or (),
            strict=False,
        ):
            yield f".<closure {name}>", getattr(cell, "cell_contents", None)


def _probe(part: Any) -> None:
    outer = (_dump.carried, _dump.tensors)
    _dump.carried, _dump.tensors = [], []
    try:
        _cloud_dumps(part, [])
    finally:
        _dump.carried, _dump.tensors = outer
