"""Who may talk to the server: the token, and without one the Host and Origin headers. Also counts requests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outplay.serve.settings import ServeSettings
from outplay.web.access import HOST_REFUSED, ORIGIN_REFUSED, TOKEN_REFUSED, Access
from outplay.web.answers import error_answer

if TYPE_CHECKING:
    from outplay.serve.metrics import ServerMetrics

_OPEN = "/health"  # answers without a token: it tells nothing but that the server runs
_PATHS = ("/act", "/sessions", "/ws", "/info", "/metrics", "/health")


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, metrics: ServerMetrics) -> None:
        self._app = app
        self._access = Access(settings.host, settings.token)
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path = _label(scope["path"])
        started = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                self._metrics.requests.add(path, str(message["status"]))
                self._metrics.request_seconds.observe(time.perf_counter() - started)
            await send(message)

        if (refusal := self._refusal(scope)) is not None:
            await refusal(scope, receive, counted)
            return
        await self._app(scope, receive, counted)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers, access = Headers(scope=scope), self._access
        if not access.needs_token:
            if not access.is_own_host(headers):
                return error_answer(403, HOST_REFUSED)
            return None if access.is_own_origin(headers) else error_answer(403, ORIGIN_REFUSED)
        if scope["path"] == _OPEN or access.has_token(headers):
            return None
        return error_answer(401, TOKEN_REFUSED, {"WWW-Authenticate": "Bearer"})


def _label(path: str) -> str:
    """The path for metrics: one of few, whatever clients send."""
    if path.startswith("/sessions/"):
        return "/sessions/{id}"
    return path if path in _PATHS else "other"
