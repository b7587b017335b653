"""How fuzzing changes things: JSON trees, tensors, bytes; and checkpoints whose hashes are right all the same."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

# Seeded, and no example database: a failure is the same wherever it runs. An example takes milliseconds; the deadline
# is for those that would hang.
FUZZ = settings(
    derandomize=True,
    database=None,
    deadline=30_000,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)


def deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 7, 10**6, 10**9, 2**31, 2**53, 2**63, 10**18, 10**30, -(10**30), 10**400,
    0.5, -0.5, 1e-320, 1e308, float("nan"), float("inf"), float("-inf"),
    "", "x", "a\0b", "\ud800", "é", "../../etc", "x" * 10_000, "9" * 5000, "NaN", "__class__",
    [], {}, [[]], [None], [0], [1, 2], list(range(1000)), {"": 0}, {"a": {"b": []}}, deep(30), deep(500),
]  # fmt: skip
odd = st.sampled_from(ODD).map(copy.deepcopy)  # what is put into a tree may be changed there


class Files(dict[str, bytes]):
    """Files by name. Hypothesis shows how they were changed, not what is in them."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.changes: list[str] = []

    def __repr__(self) -> str:
        return f"<{'; '.join(self.changes)}>"


@st.composite
def changed_tree(draw: st.DrawFn, tree: Any) -> Any:
    """A JSON tree with up to three changes: a value replaced, removed or added, a list doubled, two values swapped."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        parent, key = draw(st.sampled_from(places(tree)))
        how = draw(st.sampled_from(("replace", "replace", "replace", "remove", "add", "double", "swap")))
        if how == "replace":
            parent[key] = draw(odd)
        elif how == "remove":
            del parent[key]
        elif how == "add" and isinstance(parent, dict):
            parent[draw(st.sampled_from(("0", "x", "", "-1", "a\0", "\ud800")))] = draw(odd)
        elif how == "double" and isinstance(parent[key], list):
            parent[key] = parent[key] * 2
        elif how == "swap":
            other, there = draw(st.sampled_from(places(tree)))
            parent[key] = copy.deepcopy(other[there])
        if not places(tree):
            break
    return tree


def places(tree: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value; shallow ones first."""
    found, level = [], [tree]
    while level:
        inner = []
        for item in level:
            if isinstance(item, (dict, list)) and len(found) < 3000:
                keys = list(item) if isinstance(item, dict) else list(range(len(item)))
                found += [(item, key) for key in keys]
                inner += [item[key] for key in keys]
        level = inner
    return found


_PIECES = (b"\xff" * 8, b"\0" * 8, b'"', b"[", b"9" * 20)


@st.composite
def changed_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Some bytes replaced, a piece removed, inserted or repeated; mostly near the beginning, where the header is."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(changed)) | st.integers(0, min(len(changed), 200)))
        how = draw(st.sampled_from(("replace", "remove", "insert", "repeat")))
        piece = draw(
            st.binary(min_size=1, max_size=8) | st.sampled_from((b"\xff" * 8, b"\0" * 8, b'"', b"[", b"9" * 20))
        )
        if how == "replace":
            changed[at : at + len(piece)] = piece
        elif how == "remove":
            del changed[at : at + draw(st.sampled_from((1, 8, 100, 10**9)))]
        elif how == "insert":
            changed[at:at] = piece
        else:
            changed[at:at] = changed[at : at + 100]
    return bytes(changed)


_TENSOR_CHANGES = ("remove", "rename", "dtype", "shape", "cut", "empty", "fill", "some", "add", "swap")


@st.composite
def changed_tensors(draw: st.DrawFn, data: bytes) -> bytes:
    """A safetensors file with up to three tensors removed, renamed, reshaped, cast, or with other numbers."""
    tensors = load(data)
    for _ in range(draw(st.integers(1, 3))):
        if not tensors:
            break
        name = draw(st.sampled_from(sorted(tensors)))
        array = tensors[name].copy()
        how = draw(
            st.sampled_from(("remove", "rename", "dtype", "shape", "cut", "empty", "fill", "some", "add", "swap"))
        )
        if how == "remove":
            del tensors[name]
            continue
        if how == "rename":
            tensors[name + draw(st.sampled_from(("0", ".0", "\n", " ")))] = tensors.pop(name)
            continue
        if how == "add":
            tensors[draw(st.sampled_from(("x", "0.actions.0", "0.vector.x", "replay.last.9.9", "9.actions.9")))] = array
            continue
        if how == "swap":
            tensors[name] = tensors[draw(st.sampled_from(sorted(tensors)))]
            continue
        tensors[name] = np.ascontiguousarray(_changed_array(draw, array, how))
    return save(tensors)


def _changed_array(draw: st.DrawFn, array: np.ndarray, how: str) -> np.ndarray:
    if how == "dtype":
        kinds = (np.float16, np.float32, np.float64, np.int8, np.uint8, np.int64, np.bool_, np.uint64)
        with np.errstate(all="ignore"):
            return array.astype(draw(st.sampled_from(kinds)))
    if how == "shape":
        shapes = [(-1,), (1, -1), (-1, 1), (*array.shape, 1), (1, *array.shape), array.shape[::-1]]
        return array.reshape(draw(st.sampled_from(shapes)))
    if how == "cut":
        return array.reshape(-1)[: draw(st.sampled_from((0, 1, array.size // 2)))]
    if how == "empty":
        return np.zeros(draw(st.sampled_from(((0,), (0, 5), (5, 0, 2)))), array.dtype)
    numbers = np.array([-1, 0, 1, 2, 1000, 2**31, 2**62, 1e30, np.nan, np.inf, -np.inf])
    with np.errstate(all="ignore"):
        value = numbers[draw(st.integers(0, len(numbers) - 1))].astype(array.dtype)
    if how == "fill" or not array.size:
        return np.full_like(array, value)
    array.reshape(-1)[draw(st.integers(0, array.size - 1))] = value
    return array


@st.composite
def changed_checkpoint(draw: st.DrawFn, original: dict[str, bytes]) -> Files:
    """The files of a checkpoint with one of them changed, and the manifest made to fit; or with another manifest."""
    files = Files(original)
    name = draw(st.sampled_from(sorted(files)) | st.just("state.json"))
    data = files.pop(name)
    how = draw(st.sampled_from(("structure", "structure", "structure", "bytes", "missing", "renamed")))
    files.changes.append(f"{how} of {name}")
    if how == "bytes":
        files[name] = draw(changed_bytes(data))
    elif how == "structure" and name.endswith(".json"):
        files[name] = json.dumps(draw(changed_tree(json.loads(data)))).encode()
    elif how == "structure":
        files[name] = draw(changed_tensors(data))
    elif how == "renamed" and "/" in name:
        names = ("0000-0000000000-9999999999", "9999-0000000000-0000000005", "x", "0-1-2", "0000-0000000005-0000000001")
        files[f"replay/{draw(st.sampled_from(names))}.safetensors"] = data
    if name != "manifest.json":
        files["manifest.json"] = manifest(files)
    return files


def manifest(files: dict[str, bytes]) -> bytes:
    return json.dumps(
        {name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name != "manifest.json"}
    ).encode()


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_files(files: dict[str, bytes], folder: Path) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
