"""Numbers and durations as text, for tables and messages."""

from __future__ import annotations

import math


def duration(seconds: float) -> str:
    """A duration in its two largest units.

    >>> duration(7.4), duration(200), duration(7500), duration(93_600)
    ('7 s', '3 min 20 s', '2 h 5 min', '1 d 2 h')
    """
    left = round(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 ") or len(parts) == 1)


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "episode"), counted(1200, "step")
    ('1 episode', '1,200 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number(value: float, decimals: int = 1) -> str:
    """Format a number with this many decimals, or more for small numbers: at least two significant digits.

    >>> number(21.04), number(0.034), number(-0.5), number(0.0), number(0.00001)
    ('21.0', '0.034', '-0.50', '0.0', '1.0e-05')
    """
    if math.isnan(value):
        return "–"
    if value == 0 or math.isinf(value):
        return f"{value:.{decimals}f}"
    magnitude = math.floor(math.log10(abs(value)))
    return f"{value:.1e}" if magnitude < -4 else f"{value:.{max(decimals, 1 - magnitude)}f}"
