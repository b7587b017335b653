"""The dashboard: a page on loopback that shows runs, also while they train. The server does not import torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outplay.dashboard.server import DashboardServer
    from outplay.dashboard.settings import DashboardSettings

_LAZY = {"DashboardServer": "outplay.dashboard.server", "DashboardSettings": "outplay.dashboard.settings"}

__all__ = ["DashboardServer", "DashboardSettings"]

if not TYPE_CHECKING:  # the command line starts faster without the server

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'outplay.dashboard' has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
