"""Who may talk to the server: the token, and without one the Host and Origin headers. Also counts requests.

A server on loopback without a token must not answer web pages of other hosts that a browser on this machine shows.
With DNS rebinding such a page reaches 127.0.0.1 under its own name, which is then the Host. A page may also open a
WebSocket, or send a simple request, to 127.0.0.1: then its own address is the Origin.
"""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outplay.serve.settings import ServeSettings, is_loopback

if TYPE_CHECKING:
    from outplay.serve.metrics import ServerMetrics

_OPEN = "/health"  # answers without a token: it tells nothing but that the server runs
_PATHS = ("/act", "/sessions", "/ws", "/info", "/metrics", "/health")


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, metrics: ServerMetrics) -> None:
        self._app = app
        self._host = settings.host
        self._expected = None if settings.token is None else f"Bearer {settings.token}".encode()
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
        headers = Headers(scope=scope)
        if self._expected is None:
            host, origin = _host_in(f"//{headers.get('host', '')}"), headers.get("origin")
            if not self._is_own(host):
                return _error(403, "this Host is not allowed: without a token, the server answers to localhost only")
            if origin is not None and not self._is_own(_host_in(origin)):
                return _error(403, "this Origin is not allowed: without a token, web pages of other hosts are refused")
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = f"{scheme.title()} {token}".encode("latin-1")  # names of schemes are not case-sensitive
        if scope["path"] == _OPEN or hmac.compare_digest(given, self._expected):
            return None
        sentence = "the token is missing or wrong: send the header Authorization: Bearer TOKEN"
        return _error(401, sentence, {"WWW-Authenticate": "Bearer"})

    def _is_own(self, host: str | None) -> bool:
        return host is not None and (is_loopback(host) or host == self._host.lower())


def _host_in(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _label(path: str) -> str:
    """The path for metrics: one of few, whatever clients send."""
    if path.startswith("/sessions/"):
        return "/sessions/{id}"
    return path if path in _PATHS else "other"


def _error(status: int, sentence: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status, headers)
