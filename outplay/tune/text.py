"""Trials as text: values, variables, lines of a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outplay.errors import shortened
from outplay.formatting import duration
from outplay.tune.domains import Categorical, Domain, Grid
from outplay.tune.spaces import described
from outplay.tune.trial import Trial

_LONGEST = 40  # characters of a value


def value_text(value: Any, longest: int = _LONGEST) -> str:
    """A value of a variable, in one line.

    >>> value_text(0.00031622), value_text([64, 64]), value_text("relu")
    ('0.0003162', '[64, 64]', 'relu')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else repr(_without_domains(value))
    return shortened(one_line(text), longest)


class _Variable:
    """Stands for a variable within the value of a choice, which is shown by itself."""

    def __repr__(self) -> str:
        return "…"


def _without_domains(value: Any) -> Any:
    if isinstance(value, Domain):
        return _Variable()
    if isinstance(value, dict):
        return {key: _without_domains(each) for key, each in value.items()}
    return [_without_domains(each) for each in value] if isinstance(value, list) else value


def domain_text(domain: Domain) -> str:
    """A Domain as it is written in Python.

    >>> domain_text(Float(0, 1)), domain_text(Categorical(("a", "b")))
    ("uniform(0, 1)", "choice(['a', 'b'])")
    """
    found = described(domain)
    if not isinstance(found, dict):  # it cannot be written in a file
        return shortened(one_line(str(found)))
    ((name, values),) = found.items()
    inside = values if isinstance(domain, Categorical | Grid) else ", ".join(map(repr, values))
    return shortened(one_line(f"{name}({inside})"))


def metric_text(value: float) -> str:
    """A metric, with four significant digits; large numbers without decimals.

    >>> metric_text(487.21), metric_text(123_456.7), metric_text(float("nan"))
    ('487.2', '123,457', '–')
    """
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e15 else f"{value:.4g}"


def time_text(seconds: float) -> str:
    """A duration; short ones with a decimal."""
    return f"{seconds:.1f} s" if seconds < 9.95 else duration(seconds)


def variable_text(name: str) -> str:
    """The name of a variable as it is shown: without the level `config` of an experiment.

    >>> variable_text("config/model/fcnet_hiddens")
    'model/fcnet_hiddens'
    """
    return name.removeprefix("config/")


def values_text(values: Mapping[str, Any]) -> str:
    """All variables of a trial: "lr 0.001, gamma 0.99"."""
    return ", ".join(f"{variable_text(name)} {value_text(value)}" for name, value in values.items())


def error_text(error: str, longest: int = 200) -> str:
    """The last line of a traceback."""
    lines = error.strip().splitlines()
    return shortened(one_line(lines[-1]), longest) if lines else "unknown error"


def one_line(text: str) -> str:
    """Text without line breaks and control characters, which would move the cursor of a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def variables_of(trials: Iterable[Trial]) -> list[str]:
    """The names of all variables of these trials. Some may exist in a few of them only."""
    return list(dict.fromkeys(name for trial in trials for name in trial.values))


def table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, left: Sequence[int] = ()) -> list[str]:
    """A table as lines of at most `width` characters. Columns that do not fit are left out, and "…" says so.

    Numbers are aligned to the right; `left` are the columns that are not.
    """
    from rich.cells import cell_len, set_cell_size

    widths = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    fitting, used = 0, 0
    for i, column in enumerate(widths):
        used += column + (2 if i else 0)
        is_last = i == len(widths) - 1
        if used + (0 if is_last else 3) > width and fitting:
            break
        fitting += 1
    lines = []
    for row in (header, *rows):
        cells = []
        for i, cell in enumerate(row[:fitting]):
            padding = " " * (widths[i] - cell_len(cell))
            cells.append(cell + padding if i in left else padding + cell)
        line = "  ".join(cells) + ("  …" if fitting < len(widths) else "")
        lines.append(set_cell_size(line, width).rstrip() if cell_len(line) > width else line.rstrip())
    return lines
