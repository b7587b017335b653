"""Time limits for environments: a step that does not return raises EnvTimeoutError."""

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

_is_worker = False  # a worker process may be killed: nothing else runs in it
_watchdog_set_at = -math.inf  # time.monotonic(); -inf while the watchdog is off


class _Timeout(BaseException):
    """Not an Exception, so that an environment with `except Exception` does not catch it."""


class TimedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper whose calls raise EnvTimeoutError after `seconds`.

    SIGALRM interrupts Python code and system calls. It cannot interrupt C code that does not return: then a watchdog
    kills the worker process after about twice the time. Signals reach only the main thread, so in other threads there
    is no time limit.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, seconds: float) -> None:
        super().__init__(env)
        self._name = name
        self._seconds = seconds
        self._is_timed = threading.current_thread() is threading.main_thread()
        if not self._is_timed:
            log.warning(
                "env_step_timeout_s has no effect outside the main thread; set num_workers to at least 1 to enable it"
            )

    def step(self, action: Any) -> Any:
        return self._call_with_timeout("step", self.env.step, action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        # `options` is passed only if given: not every environment has this parameter.
        more = {} if options is None else {"options": options}
        return self._call_with_timeout("reset", self.env.reset, seed=seed, **more)

    def close(self) -> None:
        self._call_with_timeout("close", self.env.close)

    def _call_with_timeout(self, call: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if not self._is_timed:
            return function(*arguments, **named)
        _set_watchdog(self._seconds)
        before = signal.signal(signal.SIGALRM, _raise)
        try:
            signal.setitimer(signal.ITIMER_REAL, self._seconds, self._seconds)
            try:
                return function(*arguments, **named)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except _Timeout:
            raise EnvTimeoutError(
                f"environment {self._name!r} hangs: {call}() has not returned after {self._seconds:g} s "
                "(env_step_timeout_s)"
            ) from None
        finally:
            signal.signal(signal.SIGALRM, before)


def _raise(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    raise _Timeout


def mark_worker_process() -> None:
    """Declare this process a worker: the watchdog may kill it if an environment cannot be interrupted."""
    global _is_worker
    _is_worker = True


def is_worker_process() -> bool:
    return _is_worker


def _set_watchdog(seconds: float) -> None:
    """Kill this worker process in about twice the time. The watchdog is a C thread, so it is not restarted at every
    call."""
    global _watchdog_set_at
    if _is_worker and time.monotonic() - _watchdog_set_at > seconds / 2:
        _watchdog_set_at = time.monotonic()
        faulthandler.dump_traceback_later(2 * seconds + 1, exit=True, file=2)


@contextmanager
def watchdog_scope() -> Iterator[None]:
    """Cancel the watchdog at the end of the block. Use it around calls of environments: an idle process lives on."""
    global _watchdog_set_at
    try:
        yield
    finally:
        if _watchdog_set_at > -math.inf:
            _watchdog_set_at = -math.inf
            faulthandler.cancel_dump_traceback_later()
