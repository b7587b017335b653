"""How an actor ends that is not killed: `close()`, `__del__` and atexit handlers run first, for a limited time."""

from __future__ import annotations

import inspect
import sys
import traceback
from typing import Any

from outplay.engine.base import method_of
from outplay.errors import ActorDiedError

CLOSE_S = 5.0  # for close(), __del__ and atexit handlers together; then the process is killed


def close(name: str, instance: Any) -> None:
    """Call `instance.close()`, if there is one that needs no arguments. What it raises is printed: nobody waits."""
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
    except (TypeError, ValueError):  # it needs some; or nothing is known of what it needs
        return False
    return True


def exit_status(leaving: SystemExit) -> int:
    """The status that a program would end with: 0 for sys.exit() and sys.exit(0)."""
    if leaving.code is None or isinstance(leaving.code, int):
        return (leaving.code or 0) & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def left(actor: str, method: str) -> ActorDiedError:
    return ActorDiedError(f"actor {actor} has ended: {method} called sys.exit()")
