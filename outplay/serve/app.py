"""The HTTP and WebSocket interface of a served policy: a Starlette application.

POST /act                   one observation, or a batch
POST /sessions              a new session: {"session": ID}
POST /sessions/ID/reset     the next observation of the session is the first of an episode
DELETE /sessions/ID
WebSocket /ws               one session per connection
GET /info /health /metrics

Each error is {"error": one sentence}.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from outplay.serve.answering import Acting, check_no_query, from_query
from outplay.serve.describing import described_policy
from outplay.serve.failures import error_response
from outplay.serve.guard import Guard
from outplay.serve.metrics import CONTENT_TYPE
from outplay.serve.sessions import TooManySessionsError
from outplay.serve.sockets import Connections
from outplay.web.answers import body_of

_BINARY = "application/octet-stream"

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(
    acting: Acting, connections: Connections, background: Callable[[], AbstractAsyncContextManager[None]]
) -> ASGIApp:
    """`background` is what runs beside the requests."""
    endpoints = _Endpoints(acting, connections)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with background():
            yield

    routes = [
        Route("/act", _answered(endpoints.act), methods=["POST"]),
        Route("/sessions", _answered(endpoints.create_session), methods=["POST"]),
        Route("/sessions/{session}/reset", _answered(endpoints.reset_session), methods=["POST"]),
        Route("/sessions/{session}", _answered(endpoints.delete_session), methods=["DELETE"]),
        Route("/info", _answered(endpoints.info), methods=["GET"]),
        Route("/health", _answered(endpoints.health), methods=["GET"]),
        Route("/metrics", _answered(endpoints.metrics), methods=["GET"]),
        WebSocketRoute("/ws", endpoints.websocket),
        WebSocketRoute("/{path:path}", _no_websocket),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _not_routed})
    app.router.redirect_slashes = False
    return Guard(app, acting.settings, acting.metrics)


def _answered(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose exceptions become responses."""

    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:  # noqa: BLE001 - a custom model may raise anything
            return error_response(error)

    return answered


async def _no_websocket(websocket: WebSocket) -> None:
    await websocket.send_denial_response(error_response(HTTPException(404, "WebSocket connections are for /ws")))


async def _not_routed(_: Request, error: Exception) -> Response:
    return error_response(error)


class _Endpoints:
    def __init__(self, acting: Acting, connections: Connections) -> None:
        self._acting, self._connections = acting, connections

    async def act(self, request: Request) -> Response:
        data = await body_of(request, self._acting.settings.max_body_bytes)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() == _BINARY:
            answer = await self._acting.act_on_bytes(data, **from_query(request.query_params))
            headers = {"Outplay-Iteration": str(answer.served.iteration)}
            return Response(_little_endian(answer.actions), media_type=_BINARY, headers=headers)
        check_no_query(request.query_params)
        return JSONResponse(await self._acting.act_on_json(data))

    async def create_session(self, _: Request) -> Response:
        return JSONResponse({"session": self._acting.sessions.create()}, 201)

    async def reset_session(self, request: Request) -> Response:
        name = request.path_params["session"]
        session = self._acting.session(name)
        async with session.lock:
            session.state = None
        return JSONResponse({"session": name})

    async def delete_session(self, request: Request) -> Response:
        self._acting.delete_session(request.path_params["session"])
        return Response(status_code=204)

    async def info(self, _: Request) -> Response:
        return JSONResponse(described_policy(self._acting))

    async def health(self, _: Request) -> Response:
        if self._connections.are_closing:
            return JSONResponse({"status": "stopping"}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse(self._acting.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def websocket(self, websocket: WebSocket) -> None:
        try:
            name = self._acting.sessions.create(expires=False)
        except TooManySessionsError as error:
            await websocket.send_denial_response(error_response(error))
            return
        try:
            await self._connections.answer(websocket, lambda message: self._reply(message, name))
        finally:
            self._acting.sessions.delete(name)

    async def _reply(self, message: str | bytes, name: str) -> str | bytes:
        """The answer to a message of the WebSocket whose session is `name`."""
        started, status = time.perf_counter(), 200
        reply: str | bytes
        try:
            if isinstance(message, bytes):
                reply = _little_endian((await self._acting.act_on_binary_message(message, name)).actions)
            else:
                reply = _text(JSONResponse(await self._acting.act_on_message(message.encode(), name)))
        except Exception as error:  # noqa: BLE001 - as for HTTP
            response = error_response(error)
            status, reply = response.status_code, _text(response)
        self._acting.metrics.requests.add("/ws", str(status))
        self._acting.metrics.request_seconds.observe(time.perf_counter() - started)
        return reply


def _text(response: JSONResponse) -> str:
    return bytes(response.body).decode()


def _little_endian(actions: np.ndarray) -> bytes:
    return np.ascontiguousarray(actions, actions.dtype.newbyteorder("<")).tobytes()
