"""Serving: a trained policy behind HTTP and WebSocket, with batching and sessions."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outplay.serve.server import PolicyServer
    from outplay.serve.settings import ServeSettings
    from outplay.serve.source import PolicySource, ServedPolicy, load_policy

_LAZY = {
    "PolicyServer": "outplay.serve.server",
    "ServeSettings": "outplay.serve.settings",
    "PolicySource": "outplay.serve.source",
    "ServedPolicy": "outplay.serve.source",
    "load_policy": "outplay.serve.source",
}

__all__ = ["PolicyServer", "PolicySource", "ServeSettings", "ServedPolicy", "load_policy"]

if not TYPE_CHECKING:  # what needs torch is imported when it is first used

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'outplay.serve' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
