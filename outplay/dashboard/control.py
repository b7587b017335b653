"""Requests to runs: stop, checkpoint, evaluate, video."""

from __future__ import annotations

from outplay.dashboard.entries import Entry
from outplay.errors import ConfigError, nearest
from outplay.runs.folder import REQUESTS

_DONE = {
    "stop": "the run stops after this iteration, with a checkpoint",
    "checkpoint": "a checkpoint is written after this iteration",
    "evaluate": "the run evaluates after this iteration",
    "video": "a video is recorded after this iteration",
}


class NotRunningError(Exception):
    """The run does not train, so nobody would read the request."""


def request(entry: Entry, action: str) -> str:
    """Send a request to a run. Returns what happens now, in one sentence."""
    if action not in REQUESTS:
        raise ConfigError(f"there is no action {action!r}{nearest(action, REQUESTS)}")
    if not entry.is_running:
        state = entry.run.get("state", "unknown")
        raise NotRunningError(f"the run does not train: its state is {state}")
    entry.folder.request(action)
    return _DONE.get(action, f"the run was asked to {action}")
