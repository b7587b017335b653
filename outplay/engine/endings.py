"""The end of an actor that is not killed: `close()`, `__del__` and atexit handlers run, with a timeout."""

from __future__ import annotations

import inspect
import sys
import traceback
from typing import Any

from outplay.engine.base import method_of
from outplay.errors import ActorDiedError

CLOSE_S = 5.0  # timeout of close(), __del__ and atexit handlers together; then the process is killed


def close(name: str, instance: Any) -> None:
    """Call `instance.close()`, if it exists and needs no arguments. Exceptions are printed: no caller waits."""
    try:
        method = method_of(instance, "close") if hasattr(instance, "close") else None
        if callable(method) and _needs_no_arguments(method):
            method()
    except BaseException:  # noqa: BLE001 - the user's code; the actor ends in any case
        print(f"outplay: {name}.close(), called because the actor ends, raised:", file=sys.stderr)
        traceback.print_exc()


def _needs_no_arguments(method: Any) -> bool:
    try:
        inspect.signature(method).bind()
    except (TypeError, ValueError):  # it needs arguments, or its signature is unknown
        return False
    return True


def exit_status(error: SystemExit) -> int:
    """The exit status of a program that raises `error`: 0 for sys.exit() and sys.exit(0)."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def exited(actor: str, method: str) -> ActorDiedError:
    """The error of an actor whose method called sys.exit()."""
    return ActorDiedError(f"actor {actor} has ended: {method} called sys.exit()")
