"""Deadlines: an environment whose step never returns is noticed."""

from __future__ import annotations

import faulthandler
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import gymnasium

from outplay.errors import EnvTimeoutError

log = logging.getLogger("outplay")

_may_end_process = False  # this process is a worker's, and nothing else is lost with it
_armed = -math.inf  # when that was last put off


class _TimeIsUp(BaseException):
    """Not an Exception: an environment that tries again whatever it catches would catch it."""


class TimedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose calls raise EnvTimeoutError when they take longer than `seconds`.

    The alarm of the operating system interrupts what Python does, and what waits in a system call. Code in C that does
    neither cannot be interrupted: then a worker's process is ended, after twice the time. Signals are for a program's
    main thread: in others, nothing is timed.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, seconds: float) -> None:
        super().__init__(env)
        self._name = name
        self._seconds = seconds
        self._is_timed = threading.current_thread() is threading.main_thread()
        if not self._is_timed:
            log.warning("env_step_timeout_s: outside the main thread nothing is timed; set num_workers to at least 1")

    def step(self, action: Any) -> Any:
        return self._in_time("step", self.env.step, action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        # Without options where there are none: not every environment takes them.
        return self._in_time("reset", self.env.reset, seed=seed, **({} if options is None else {"options": options}))

    def close(self) -> None:
        self._in_time("close", self.env.close)

    def _in_time(self, call: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if not self._is_timed:
            return function(*arguments, **named)
        _put_off_end(self._seconds)
        before = signal.signal(signal.SIGALRM, _raise)
        try:
            signal.setitimer(signal.ITIMER_REAL, self._seconds, self._seconds)
            try:
                return function(*arguments, **named)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except _TimeIsUp:
            raise EnvTimeoutError(
                f"environment {self._name!r} hangs: {call}() has not returned after {self._seconds:g} s "
                "(env_step_timeout_s)"
            ) from None
        finally:
            signal.signal(signal.SIGALRM, before)


def _raise(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise _TimeIsUp


def may_end_process() -> None:
    """This process is a worker's: if an environment cannot be interrupted, it may be ended."""
    global _may_end_process
    _may_end_process = True


def is_worker_process() -> bool:
    return _may_end_process


def _put_off_end(seconds: float) -> None:
    """End this process in about twice the time. That takes a thread, without Python: it is not started every time."""
    global _armed
    if _may_end_process and time.monotonic() - _armed > seconds / 2:
        _armed = time.monotonic()
        faulthandler.dump_traceback_later(2 * seconds + 1, exit=True, file=2)


@contextmanager
def end_called_off() -> Iterator[None]:
    """Around work with environments: after it, the process may stay idle for as long as it likes."""
    global _armed
    try:
        yield
    finally:
        if _armed > -math.inf:
            _armed = -math.inf
            faulthandler.cancel_dump_traceback_later()
