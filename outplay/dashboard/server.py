"""DashboardServer: the dashboard of a results folder on a port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self
from urllib.parse import quote

from outplay.dashboard.announcing import announced
from outplay.dashboard.app import Endpoints, make_app
from outplay.dashboard.catalog import Catalog
from outplay.dashboard.defaults import Defaults
from outplay.dashboard.events import Events
from outplay.dashboard.guard import Guard
from outplay.dashboard.plays import Plays
from outplay.dashboard.series import SeriesStore
from outplay.dashboard.settings import DashboardSettings
from outplay.dashboard.starting import Starts
from outplay.dashboard.usage import Machine
from outplay.web.listening import Application, WebServer

log = logging.getLogger("outplay")

_STOP_TIMEOUT_S = 5.0
_MAX_MESSAGE = 65_536  # bytes: browsers send commands only


class DashboardServer:
    """Serves the page of a results folder.

    >>> with DashboardServer(DashboardSettings(port=0)) as dashboard:
    ...     httpx.get(f"{dashboard.url}/api/overview").json()["runs"]
    []

    As a context, it runs in a thread. `run` serves in the main thread until SIGTERM or Ctrl-C.
    """

    def __init__(self, settings: DashboardSettings | None = None) -> None:
        """Bind the port. Raises ConfigError if this fails."""
        self.settings = settings or DashboardSettings()
        self._announced = contextlib.ExitStack()
        self._web = WebServer(self.settings.host, self.settings.port, self._application, _STOP_TIMEOUT_S, _MAX_MESSAGE)

    @property
    def url(self) -> str:
        return self._web.url

    @property
    def link(self) -> str:
        """The address for a browser on this machine, with the token."""
        token = self.settings.token
        shown = self.url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        return f"{shown}/" + ("" if token is None else f"?token={quote(token, safe='')}")

    def run(self, on_start: Callable[[], None] | None = None) -> None:
        """Serve until SIGTERM or SIGINT."""
        with announced(self.settings.results, self.link):
            self._web.run(on_start)

    def stop(self) -> None:
        self._web.stop()

    def __enter__(self) -> Self:
        self._web.__enter__()
        self._announced.enter_context(announced(self.settings.results, self.link))
        return self

    def __exit__(self, *_: object) -> None:
        self._announced.close()
        self._web.__exit__()

    def _application(self) -> Application:
        settings = self.settings
        defaults = Defaults()
        catalog, store = Catalog(settings.results, defaults), SeriesStore(settings.memory_bytes)
        machine = Machine(settings.results)
        events, plays = Events(catalog, machine), Plays(catalog, settings.trust)
        starts = Starts(settings.results, catalog.run_of)
        endpoints = Endpoints(catalog, store, events, machine, starts)

        @asynccontextmanager
        async def background() -> AsyncIterator[None]:
            loading = asyncio.create_task(defaults.load())
            try:
                yield
            finally:
                loading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await loading
                await asyncio.to_thread(store.stop)
                await asyncio.to_thread(starts.close)

        async def close() -> None:
            events.close()
            await plays.close()

        app = make_app(endpoints, background, plays.answer)
        return Application(Guard(app, settings.host, self._web.port, settings.token), close)
