"""The WebSocket of the player: from a request to a run that is watched, and the end of all of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect

from outplay.dashboard import requests
from outplay.dashboard.catalog import Catalog, UnknownError
from outplay.dashboard.playing import play, refuse
from outplay.errors import ConfigError, shortened

_GOING_AWAY = 1001


class Plays:
    """All players that are being watched."""

    def __init__(self, catalog: Catalog, trust: bool = False) -> None:
        """`trust`: import what checkpoints name."""
        self._catalog = catalog
        self._trust = trust
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def answer(self, websocket: WebSocket) -> None:
        """Answer a WebSocket request: /api/play?run=ID[&checkpoint=NAME][&seed=N]."""
        query = websocket.query_params
        try:
            entry = await asyncio.to_thread(self._catalog.run, requests.one(query, "run"))
            seed = _seed(query.get("seed"))
        except (UnknownError, ConfigError) as error:
            # Of a connection that is denied, browsers do not tell the page why.
            await websocket.accept()
            await refuse(websocket, str(error))
            return
        task = asyncio.create_task(play(websocket, entry.folder, query.get("checkpoint"), seed, self._trust))
        self._tasks.add(task)
        if self._is_closing:
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            with suppress(RuntimeError, WebSocketDisconnect):  # it has left already
                await websocket.close(_GOING_AWAY, "the dashboard stops")
        finally:
            task.cancel()  # if this request was cancelled
            await asyncio.wait((task,))
            self._tasks.discard(task)

    async def close(self) -> None:
        """End all players."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _seed(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 19:
        raise ConfigError(f"the seed must be an integer of at least 0, not {shortened(text)!r}")
    return int(text)
