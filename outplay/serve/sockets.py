"""WebSocket connections: each message is answered before the next one is read, also while the server stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

Reply = Callable[[str | bytes], Awaitable[str | bytes]]

_GOING_AWAY = 1001


class Connections:
    """All open connections."""

    def __init__(self) -> None:
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def are_closing(self) -> bool:
        return self._closing.is_set()

    async def close(self, timeout_s: float) -> None:
        """Let each connection answer the message that it has read, then close it."""
        self._closing.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def answer(self, websocket: WebSocket, reply: Reply) -> None:
        """Accept a connection and answer its messages until it ends."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await websocket.accept()
            await self._answer_messages(websocket, reply)
        except WebSocketDisconnect:
            pass  # the client has closed it, or the network has
        finally:
            self._tasks.discard(task)

    async def _answer_messages(self, websocket: WebSocket, reply: Reply) -> None:
        closing = asyncio.create_task(self._closing.wait())
        try:
            while not self.are_closing:
                reading = asyncio.create_task(websocket.receive())
                await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    reading.cancel()
                    await asyncio.wait((reading,))
                    break
                received = reading.result()
                if received["type"] == "websocket.disconnect":
                    return
                text = received.get("text")
                answer = await reply(received["bytes"] if text is None else text)
                await (websocket.send_bytes(answer) if isinstance(answer, bytes) else websocket.send_text(answer))
        finally:
            closing.cancel()
        if websocket.application_state is WebSocketState.CONNECTED:
            await websocket.close(_GOING_AWAY, "the server stops")
