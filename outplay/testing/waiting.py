"""Tests wait for a condition: none sleeps and hopes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until this is true, and return it. After so many seconds the test fails.

    >>> until((folder / "started").exists)
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{condition} is not true after {seconds:g} s"
        time.sleep(0.01)
    return found
