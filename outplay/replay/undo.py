"""An undo log: a replay buffer is too large to be copied, so overwritten values are saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Step = Callable[[], None]


class Undo:
    """Functions that restore overwritten values, called in reverse order. Nothing is logged before `begin()`.

    >>> undo, numbers = Undo(), [1, 2]
    >>> undo.begin()
    >>> undo.keep(lambda: numbers.__setitem__(0, 1))  # before overwriting, which may fail halfway
    >>> numbers[0] = 5
    >>> undo.all()
    >>> numbers
    [1, 2]
    """

    def __init__(self) -> None:
        self._steps: list[Step] | None = None

    @property
    def is_on(self) -> bool:
        return self._steps is not None

    def begin(self) -> None:
        self._steps = []

    def keep(self, step: Step) -> None:
        if self._steps is not None:
            self._steps.append(step)

    def keep_parts(self, parts: Sequence[tuple[np.ndarray, Any]]) -> None:
        """Copies of parts of arrays, each given as (array, index)."""
        copies = [(array, index, array[index].copy()) for array, index in parts]

        def put_back() -> None:
            for array, index, values in copies:
                array[index] = values

        self.keep(put_back)

    def all(self) -> None:
        """Restore everything. May be called again if it was interrupted."""
        for step in reversed(self._steps or []):
            step()
