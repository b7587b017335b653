"""Waiting for a condition in tests, instead of a fixed sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until `condition()` is true, and return its value. After the timeout, the test fails.

    >>> until((folder / "started").exists)
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{condition} is not true after {seconds:g} s"
        time.sleep(0.01)
    return found
