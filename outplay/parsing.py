"""Parsing of untrusted JSON and YAML, with limits.

The result is plain data. Rejected are: files that are too large, deep nesting, recursive YAML aliases, aliases that
expand beyond a limit, strings that cannot be encoded, integers with thousands of digits.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from outplay.errors import ConfigError, shortened

MAX_JSON_BYTES = 100_000_000
MAX_YAML_BYTES = 1_000_000  # parsing takes up to a second per 100 KB
_TOO_LARGE = f"is larger than {MAX_YAML_BYTES:,} bytes, the limit for YAML"
MAX_DEPTH = 64  # nested lists and mappings
MAX_EXPANDED = 100_000  # nodes and characters that aliases add
_MAX_BITS = 512  # of an integer; the state of a random generator has 128
_UNENCODABLE = re.compile("[\0\ud800-\udfff]")


def parse_json(data: bytes) -> Any:
    """Parse JSON. Raises ValueError with one sentence.

    >>> parse_json(b'{"lanes": 4}')
    {'lanes': 4}
    """
    if len(data) > MAX_JSON_BYTES:
        raise ValueError(f"larger than {MAX_JSON_BYTES:,} bytes")
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    except ValueError as error:
        if (problem := json_problem(error)) != str(error):
            raise ValueError(problem) from None
        raise
    check_plain(value)
    return value


def json_problem(error: ValueError) -> str:
    """What is wrong with JSON that `json` has refused. Python's own words about long integers name a setting of it."""
    most = sys.get_int_max_str_digits()
    return f"an integer has more than {most:,} digits" if "integer string conversion" in str(error) else str(error)


def check_plain(value: Any) -> None:
    """Raise ValueError if parsed data is nested too deep, or holds a string or an integer out of bounds."""
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str) and _UNENCODABLE.search(item):
                raise ValueError(f"the string {shortened(repr(item))} contains NUL or a lone surrogate")
            if isinstance(item, int) and item.bit_length() > _MAX_BITS:
                raise ValueError(f"an integer of {item.bit_length():,} bits")
            if isinstance(item, dict):
                inner += (*item, *item.values())
            elif isinstance(item, (list, tuple, set)):
                inner += item
        level, depth = inner, depth + 1


def read_yaml(path: Path) -> Any:
    """Parse a YAML file. Raises ConfigError with the file and the line."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_YAML_BYTES + 1)
        text = "" if len(data) > MAX_YAML_BYTES else data.decode()
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}") from None
    except OSError as error:
        raise ConfigError(f"{shortened(str(path))} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if len(data) > MAX_YAML_BYTES:
        raise ConfigError(f"{path} {_TOO_LARGE}")
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML. Raises ConfigError with `where` and the line."""
    if len(text) > MAX_YAML_BYTES:
        raise ConfigError(f"{where} {_TOO_LARGE}")
    try:
        value = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{where}: YAML does not allow the character U+{error.character:04X}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        problem = getattr(error, "problem", None) or str(error)
        if "\\t" in problem or "'\t'" in problem:
            problem = "YAML must be indented with spaces, not with tabs"
        raise ConfigError(f"{where}{line}: {problem}") from None
    except (ValueError, OverflowError):  # "\UFFFFFFFF"
        raise ConfigError(f"{where}: an escape sequence names no Unicode character") from None
    try:
        check_plain(value)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    return value


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """SafeLoader with limits. 1e-3 is a number; duplicate keys are rejected."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._expanded = 0
        self._measures: dict[yaml.Node, tuple[int, int]] = {}  # (expanded size, height) of complete nodes

    def compose_node(self, parent: Any, index: Any) -> yaml.Node:
        mark = self.peek_event().start_mark
        if self.check_event(yaml.AliasEvent):
            node = super().compose_node(parent, index)
            if node not in self._measures:
                raise yaml.composer.ComposerError(None, None, "an alias refers to a node that contains it", mark)
            self._expanded += self._measures[node][0]
            if self._expanded > MAX_EXPANDED:
                problem = f"aliases expand to more than {MAX_EXPANDED:,} nodes"
                raise yaml.composer.ComposerError(None, None, problem, mark)
            self._check_depth(self._depth + self._measures[node][1], mark)
            return node
        self._depth += 1
        self._check_depth(self._depth, mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        self._measures[node] = self._measured(node)
        return node

    def _check_depth(self, depth: int, mark: Any) -> None:
        if depth > MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"nested more than {MAX_DEPTH} levels deep", mark)

    def _measured(self, node: yaml.Node) -> tuple[int, int]:
        if isinstance(node, yaml.ScalarNode):
            return 1 + len(node.value), 1
        is_mapping = isinstance(node, yaml.MappingNode)
        parts = [part for pair in node.value for part in pair] if is_mapping else node.value
        sizes, heights = zip(*(self._measures[part] for part in parts), strict=True) if parts else ((), ())
        return 1 + sum(sizes), 1 + max(heights, default=0)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:  # !!int x, 2024-13-45
            kind, value = node.tag.rpartition(":")[2], shortened(str(node.value))
            problem = f"{value!r} cannot be read as {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (list, dict, set)):
                raise yaml.constructor.ConstructorError(None, None, "keys must be strings", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", key_node.start_mark)
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)
