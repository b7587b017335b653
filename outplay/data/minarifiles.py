"""Minari data sets on this machine (MINARI_DATASETS_PATH), read and written. Nothing is downloaded."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from outplay import spaces
from outplay.data import transitions
from outplay.data.columns import Column, Rows, concatenated, take
from outplay.data.dataset import Dataset, Part
from outplay.errors import DataError, nearest
from outplay.files import remove
from outplay.spaces import Leaf

try:
    from minari import __version__ as minari_version
    from minari.data_collector.episode_buffer import EpisodeBuffer
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.dataset.minari_storage import MinariStorage
    from minari.storage.datasets_root_dir import get_dataset_path
except ImportError as error:
    raise DataError("Minari data sets need minari: pip install 'outplay[data]'") from error

_BLOCK_ROWS = 4096  # episodes are read together until they have this many rows
_FORMATS = ("arrow", "hdf5")


@dataclass(frozen=True)
class MinariBlock:
    """Some episodes of a Minari data set."""

    path: Path
    episodes: tuple[int, ...]
    rows: int
    leaves: tuple[Leaf, ...] = field(repr=False)
    columns: tuple[str, ...]

    def read(self) -> Rows:
        storage = _storage(self.path)
        found = [_rows(episode, self.leaves, storage.action_space) for episode in storage.get_episodes(self.episodes)]
        return {name: array for name, array in concatenated(found).items() if name in self.columns}

    def pieces(self) -> Iterator[Rows]:
        yield self.read()


def read_minari(name: str, leaves: tuple[Leaf, ...] | None = None) -> Dataset:
    """A Dataset of a local Minari data set, with the columns of recorded experience. Episodes are read when needed.

    `leaves` are those of the environment's observations; default: of the observation space of the data set.
    """
    path = _path(name)
    storage = _storage(path)
    if leaves is None:
        leaves = spaces.leaves(spaces.readable(storage.observation_space))
    with _readable(name):
        meta = list(storage.get_episode_metadata(range(storage.total_episodes)))
    if not meta:
        raise DataError(f"the Minari data set {name!r} has no episodes")
    lengths = [int(episode["total_steps"]) for episode in meta]
    try:
        first = _rows(next(iter(storage.get_episodes([0]))), leaves, storage.action_space)
    except (KeyError, IndexError, TypeError) as error:
        raise DataError(f"the observations of the Minari data set {name!r} are not those of the environment") from error
    columns = {key: Column(array.dtype, array.shape[1:]) for key, array in first.items()}
    names = tuple(columns)
    parts = [
        Part(MinariBlock(path, tuple(chosen), rows, leaves, names), 0, rows) for chosen, rows in _together(lengths)
    ]
    return Dataset(parts, columns, {"minari": name})


def _together(lengths: list[int]) -> Iterator[tuple[range, int]]:
    """Episodes that are read together, and their rows."""
    first = rows = 0
    for number, length in enumerate(lengths):
        rows += length
        if rows >= _BLOCK_ROWS or number == len(lengths) - 1:
            yield range(first, number + 1), rows
            first, rows = number + 1, 0


def _path(name: str) -> Path:
    try:
        parse_dataset_id(name)
    except (ValueError, TypeError) as error:  # TypeError: it has no version
        raise DataError(f"{name!r} is no name of a Minari data set, as CartPole/expert-v0") from error
    return Path(get_dataset_path(name)) / "data"


def _storage(path: Path) -> Any:
    name = path.parent
    if not (path / "metadata.json").is_file():
        root = Path(get_dataset_path(""))
        known = [str(found.parent.parent.relative_to(root)) for found in root.rglob("data/metadata.json")]
        here = str(name.relative_to(root)) if name.is_relative_to(root) else str(name)
        raise DataError(f"there is no local Minari data set {here!r} in {root}{nearest(here, known) if known else ''}")
    with _readable(name):
        raw = MinariStorage.read_raw_metadata(path)
        if "observation_space" not in raw or "action_space" not in raw:
            # Minari would make the environment that the file names, which imports code.
            raise DataError(
                f"the Minari data set {name} does not say its spaces; save it with a newer version of minari"
            )
        return MinariStorage.read(path)


@contextmanager
def _importable(data_format: str) -> Iterator[None]:
    """Turn the ImportError of a format into a DataError."""
    try:
        yield
    except ImportError as error:
        raise DataError(f"the Minari format {data_format} needs another package: {error}") from error


@contextmanager
def _readable(name: object) -> Iterator[None]:
    """Turn errors of Minari about a data set into a DataError."""
    try:
        yield
    except ImportError as error:
        raise DataError(f"the Minari data set {name} has a format that needs another package: {error}") from error
    except (OSError, ValueError, LookupError, TypeError, AssertionError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise DataError(f"the Minari data set {name} is damaged, or its format is unknown: {problem}") from error


def _rows(episode: dict[str, Any], leaves: tuple[Leaf, ...], action_space: gymnasium.Space[Any]) -> Rows:
    """One episode as rows. It has one more observation than actions."""
    steps = len(episode["rewards"])
    seen = [np.asarray(_follow(episode["observations"], leaf.path)).astype(leaf.dtype) for leaf in leaves]
    rows: Rows = {}
    for prefix, part in ((transitions.OBSERVATION, slice(0, steps)), (transitions.NEXT_OBSERVATION, slice(1, None))):
        rows |= {name: leaf[part] for name, leaf in zip(transitions.leaf_columns(leaves, prefix), seen, strict=True)}
    rows[transitions.ACTION] = _flat_actions(action_space, episode["actions"], steps)
    rows[transitions.REWARD] = np.asarray(episode["rewards"], np.float32)
    rows[transitions.TERMINATED] = np.asarray(episode["terminations"], bool)
    rows[transitions.TRUNCATED] = np.asarray(episode["truncations"], bool)
    rows[transitions.EPISODE] = np.full(steps, int(episode["id"]), np.int64)
    rows[transitions.STEP] = np.arange(steps)
    return rows


def _follow(observations: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        observations = observations[key]
    return observations


def _flat_actions(space: gymnasium.Space[Any], actions: Any, steps: int) -> np.ndarray:
    if not spaces.is_composite(space):
        return np.asarray(actions)
    keys = sorted(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else range(len(space.spaces))  # type: ignore[attr-defined]
    parts = [_flat_actions(space[key], actions[key], steps).reshape(steps, -1) for key in keys]  # type: ignore[index]
    return np.concatenate(parts, -1).astype(np.float64)


def write_minari(
    dataset: Dataset, name: str, env: str | None = None, algorithm: str | None = None, data_format: str = "arrow"
) -> None:
    """Write recorded experience as a local Minari data set: see `data.write_minari`."""
    from minari.namespace import create_namespace, list_local_namespaces

    if data_format not in _FORMATS:
        raise DataError(f"data_format must be {' or '.join(_FORMATS)}, not {data_format!r}")
    for column in ("observation_space", "action_space"):
        if column not in dataset.metadata:
            raise DataError("this data set was not recorded by Outplay: its metadata has no spaces")
    observed, acted = (
        transitions.space_from_json(json.loads(dataset.metadata[key])) for key in ("observation_space", "action_space")
    )
    path = _path(name)
    if path.exists():
        raise DataError(f"there is a Minari data set {name!r} already; choose another name")
    namespace = parse_dataset_id(name)[0]
    if namespace is not None and namespace not in list_local_namespaces():
        create_namespace(namespace)
    env_id = env or dataset.metadata.get("env", "")
    spec = gymnasium.spec(env_id) if env_id in gymnasium.registry else None
    named = {"dataset_id": name, "minari_version": minari_version}
    leaves = spaces.leaves(observed)
    path.mkdir(parents=True)
    try:
        with _importable(data_format), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about an environment that cannot be recovered
            storage = MinariStorage.new(path, observed, acted, spec, data_format, jpeg_encoding=False)
            storage.update_metadata({**named, "algorithm_name": algorithm or dataset.metadata.get("algorithm", "")})
            storage.update_episodes(_buffer(rows, leaves, observed, acted) for rows in whole_episodes(dataset))
    except BaseException:
        remove(path.parent)  # nothing half-written
        raise


def whole_episodes(dataset: Dataset) -> Iterator[Rows]:
    """The episodes of a data set, each as rows in order. An episode may be spread over several files."""
    waiting: dict[int, list[Rows]] = {}
    for block in dataset.blocks():
        numbers = block[transitions.EPISODE]
        cuts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        for start, stop in zip([0, *cuts], [*cuts, len(numbers)], strict=True):
            rows = take(block, slice(int(start), int(stop)))
            pieces = waiting.setdefault(int(numbers[start]), [])
            ended = np.flatnonzero(rows[transitions.TERMINATED] | rows[transitions.TRUNCATED])
            pieces.append(rows)
            if len(ended):
                yield _in_order(waiting.pop(int(numbers[start])))
    for pieces in waiting.values():  # the data ends before the episode
        yield _in_order(pieces)


def _in_order(pieces: list[Rows]) -> Rows:
    rows = concatenated(pieces)
    return take(rows, np.argsort(rows[transitions.STEP], kind="stable"))


def _buffer(rows: Rows, leaves: tuple[Leaf, ...], observed: Any, acted: Any) -> Any:
    """One episode as Minari writes it, with the observation after its last step."""
    names = zip(transitions.leaf_columns(leaves), transitions.leaf_columns(leaves, "next_observation"), strict=True)
    values = [np.concatenate([rows[now], rows[after][-1:]]) for now, after in names]
    truncated = rows[transitions.TRUNCATED].copy()
    truncated[-1] |= not rows[transitions.TERMINATED][-1]  # cut off by the end of the data
    return EpisodeBuffer(
        observations=_nested(observed, leaves, values),
        actions=_nested_actions(acted, rows[transitions.ACTION]),
        rewards=rows[transitions.REWARD].astype(np.float64).tolist(),
        terminations=rows[transitions.TERMINATED].tolist(),
        truncations=truncated.tolist(),
    )


def _nested(space: Any, leaves: tuple[Leaf, ...], values: list[np.ndarray], path: tuple[Any, ...] = ()) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _nested(part, leaves, values, (*path, key)) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_nested(part, leaves, values, (*path, i)) for i, part in enumerate(space.spaces))
    return values[[leaf.path for leaf in leaves].index(path)]


def _nested_actions(space: Any, flat: np.ndarray) -> Any:
    if not spaces.is_composite(space):
        return flat
    each = [spaces.nested_action(space, row) for row in flat]
    return _stacked(space, each)


def _stacked(space: Any, each: list[Any]) -> Any:
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: _stacked(part, [action[key] for action in each]) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(_stacked(part, [action[i] for action in each]) for i, part in enumerate(space.spaces))
    return np.array(each)
