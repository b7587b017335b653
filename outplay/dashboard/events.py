"""Server-sent events: what has changed, for all pages that are open. While there is none, nothing is read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from pydantic_core import to_json

from outplay.dashboard.catalog import Catalog
from outplay.dashboard.usage import INTERVAL_S, Machine

_LOOK_S = 1.0
_COMMENT_S = 15.0  # proxies close connections that are silent
_MOST_PAGES = 64


class TooManyPagesError(Exception):
    """There are too many open connections."""


class Events:
    """Looks for changes once per second while pages are open, and tells them."""

    def __init__(self, catalog: Catalog, machine: Machine) -> None:
        self._catalog, self._machine = catalog, machine
        self._pages = 0
        self._closing = asyncio.Event()
        self._looking = asyncio.Lock()

    def close(self) -> None:
        """End all connections."""
        self._closing.set()

    def stream(self, mark: str) -> AsyncIterator[bytes]:
        """The events of one page, from a mark of the catalog on. Raises TooManyPagesError."""
        if self._pages >= _MOST_PAGES:
            raise TooManyPagesError
        return self._stream(mark)

    async def _stream(self, mark: str) -> AsyncIterator[bytes]:
        self._pages += 1
        try:
            machine: dict[str, Any] = {}
            machine_at, sent_at = -INTERVAL_S, time.monotonic()
            yield b"retry: 2000\n\n"
            while True:
                mark, changes = await self._look(mark)
                now = time.monotonic()
                if now - machine_at >= INTERVAL_S:
                    machine_at = now
                    found = await asyncio.to_thread(self._machine.sample)
                    is_new, machine = found != machine, found
                else:
                    is_new = False
                if any(changes.values()) or is_new:
                    sent_at = now
                    data = to_json({**changes, "machine": machine}, inf_nan_mode="null")
                    yield b"event: changes\nid: %b\ndata: %b\n\n" % (mark.encode(), data)
                elif now - sent_at >= _COMMENT_S:
                    sent_at = now
                    yield b": open\n\n"
                if await self._is_closing():
                    return
        finally:
            self._pages -= 1

    async def _look(self, mark: str) -> tuple[str, dict[str, Any]]:
        async with self._looking:  # one look at a time: the others then find the same changes
            await asyncio.to_thread(self._catalog.refresh)
        return await asyncio.to_thread(self._catalog.changes, mark)

    async def _is_closing(self) -> bool:
        try:
            await asyncio.wait_for(self._closing.wait(), _LOOK_S)
        except TimeoutError:
            return False
        return True
