"""Interrupting the task that a worker runs, because it was cancelled."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from outplay.engine.process.post import Uninterrupted


class Interrupts:
    """A guard of the user's function: KeyboardInterrupt is raised in it when asked for, once, and nowhere else.

    A task runs in the main thread, and another reads the message that cancels it. Only a real signal ends a sleep.
    """

    def __init__(self, uninterrupted: Uninterrupted) -> None:
        self.asked = False
        self.raised: BaseException | None = None  # by the function
        self._open = False
        self._uninterrupted = uninterrupted
        signal.signal(signal.SIGINT, self._on_signal)

    def ask(self) -> None:
        """Interrupt the task that runs; one that is about to call its function is interrupted there."""
        self.asked = True
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)

    def reset(self) -> None:
        """Another task begins."""
        self.asked, self.raised = False, None

    def __enter__(self) -> None:
        self._open = True
        if self.asked:
            self._open = False
            raise KeyboardInterrupt

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._open = False
        self.raised = error

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Any other SIGINT is ignored: Ctrl-C in a terminal is for the driver, which ends its workers itself.
        if self._open and self.asked:
            self._open = False
            self._uninterrupted.interrupt(number, frame)
