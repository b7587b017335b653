"""Ctrl-C at any moment leaves the process engine in working order."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

import outplay
from outplay.engine.process import post


@outplay.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count


class InterruptAt:
    """Sends Ctrl-C before one line that this thread runs in post.py: the `number`-th."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != post.__file__:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
        return self

    @property
    def happened(self) -> bool:
        return self.left <= 0


def test_an_interrupt_at_any_line_of_a_call_breaks_nothing(process_engine: None) -> None:
    actor = Counter.remote()
    last = outplay.get(actor.next.remote())
    interrupted, before = 0, sys.gettrace()
    for number in range(1, 10_000):
        at = InterruptAt(number)
        try:
            sys.settrace(at)
            outplay.get(actor.next.remote())
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(before)
        value = outplay.get(actor.next.remote(), timeout=60)
        assert value > last
        last = value
        if not at.happened:  # the call has fewer lines
            break
    assert interrupted > 30
