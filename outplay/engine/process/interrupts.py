"""Interrupts the task that a worker runs, because it was cancelled."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from outplay.engine.process.post import Uninterrupted


class Interrupts:
    """A context manager around the user's function. `ask` raises KeyboardInterrupt inside it, once.

    The task runs in the main thread; another thread reads the message that cancels it. Only a real signal interrupts a
    system call such as sleep.
    """

    def __init__(self, uninterrupted: Uninterrupted) -> None:
        self.asked = False
        self.raised: BaseException | None = None  # by the function
        self._is_running = False
        self._uninterrupted = uninterrupted
        signal.signal(signal.SIGINT, self._on_signal)

    def ask(self) -> None:
        """Interrupt the running task. If its function was not called yet, the interrupt waits for that."""
        self.asked = True
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)

    def reset(self) -> None:
        """Prepare for the next task."""
        self.asked, self.raised = False, None

    def __enter__(self) -> None:
        self._is_running = True
        if self.asked:
            self._is_running = False
            raise KeyboardInterrupt

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._is_running = False
        self.raised = error

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Other SIGINTs are ignored: Ctrl-C in a terminal is for the driver, which ends its workers.
        if self._is_running and self.asked:
            self._is_running = False
            self._uninterrupted.interrupt(number, frame)
