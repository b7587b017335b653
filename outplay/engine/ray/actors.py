"""The state of actors, and how they are ended."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

import ray
import ray._private.state
import ray.exceptions
import ray.experimental.internal_kv as kv

from outplay.engine.endings import CLOSE_S


def wait_until_dead(handle: Any) -> None:
    """Wait until an actor is dead. `ray.kill` returns earlier, and another call could still reach the actor."""
    with suppress(ray.exceptions.RayError):
        while True:
            ray.get(handle.__ray_ready__.remote(), timeout=60)
            time.sleep(0.01)


def end_actors(handles: list[Any]) -> None:
    """Let actors close before Ray kills them at the end of the program. They get CLOSE_S seconds."""
    deadline = time.monotonic() + CLOSE_S
    by_ref = {handle.end.remote(): handle for handle in handles if not is_dead(handle)}
    ready, _ = ray.wait(list(by_ref), num_returns=len(by_ref), timeout=CLOSE_S) if by_ref else ([], [])
    this_node, processes = ray.get_runtime_context().get_node_id(), []
    for ref in ready:
        with suppress(ray.exceptions.RayError):  # the actor is dead already
            node, process = ray.get(ref)
            by_ref[ref].__ray_terminate__.remote()
            if node == this_node:  # wait for the process: it runs atexit handlers
                processes.append(process)
    while any(_exists(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.01)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def is_dead(handle: Any) -> bool:
    """Whether an actor has died, or its constructor has failed."""
    return state(handle) == "DEAD" or kv._internal_kv_exists(key("failed", handle._actor_id.hex()))


def state(handle: Any) -> str | None:
    known = ray._private.state.actors(handle._actor_id.hex())
    return known["State"] if known else None


def key(kind: str, actor: str) -> str:
    """A key of Ray's key-value store. `kind`: "class" (of a named actor), "failed" (its constructor failed)."""
    return f"outplay:{kind}:{actor}"
