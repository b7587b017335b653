"""The HTTP interface of the dashboard: a Starlette application. Each error is {"error": one sentence}."""

from __future__ import annotations

import asyncio
import logging
import math
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from outplay import __version__
from outplay.dashboard import control, requests
from outplay.dashboard.catalog import Catalog, UnknownError
from outplay.dashboard.control import NotRunningError
from outplay.dashboard.details import difference, run_details, videos_of
from outplay.dashboard.events import Events, TooManyPagesError
from outplay.dashboard.grouping import groups_answer
from outplay.dashboard.series import SeriesStore, series_answer
from outplay.dashboard.starting import Starts, TooManyStartsError, recipes
from outplay.dashboard.statics import StaticFiles
from outplay.dashboard.studies import study_details
from outplay.dashboard.usage import Machine
from outplay.errors import OutplayError
from outplay.web.answers import body_of, error_answer, http_error_answer

log = logging.getLogger("outplay")

_PATHS = "there is nothing at this path; the page is at /"
_MAX_BODY = 2_000_000

Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(
    endpoints: Endpoints,
    background: Callable[[], AbstractAsyncContextManager[None]],
    play: Callable[[WebSocket], Awaitable[None]],
) -> ASGIApp:
    """`background` is what runs beside the requests; `play` answers the WebSocket of the player."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with background():
            yield

    def get(path: str, endpoint: Endpoint) -> BaseRoute:
        return Route(path, _answered(endpoint), methods=["GET"])

    def post(path: str, endpoint: Endpoint) -> BaseRoute:
        return Route(path, _answered(endpoint), methods=["POST"])

    routes = [
        get("/", endpoints.page),
        get("/static/{path:path}", endpoints.static),
        get("/api/overview", endpoints.overview),
        get("/api/events", endpoints.event_stream),
        get("/api/run", endpoints.run),
        get("/api/series", endpoints.series),
        get("/api/groups", endpoints.groups),
        get("/api/metrics", endpoints.metrics),
        get("/api/diff", endpoints.diff),
        get("/api/study", endpoints.study),
        get("/api/recipes", endpoints.recipes),
        get("/api/starts", endpoints.list_starts),
        get("/api/video", endpoints.video),
        post("/api/control", endpoints.control),
        post("/api/start", endpoints.start),
        WebSocketRoute("/api/play", play),
        WebSocketRoute("/{path:path}", _no_websocket),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _not_routed})
    app.router.redirect_slashes = False
    return app


def _answered(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose exceptions become responses."""

    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Exception as error:  # noqa: BLE001 - run folders may contain anything; clients get no traceback
            return error_of(error)

    return answered


async def _not_routed(_: Request, error: Exception) -> Response:
    return error_of(error)


async def _no_websocket(websocket: WebSocket) -> None:
    await websocket.send_denial_response(error_answer(404, "WebSocket connections are for /api/play"))


def error_of(error: Exception) -> Response:
    """The response for an exception. What is not a mistake of the client is logged."""
    if isinstance(error, HTTPException):
        return http_error_answer(error, _PATHS)
    if isinstance(error, UnknownError):
        return error_answer(404, str(error))
    if isinstance(error, NotRunningError):
        return error_answer(409, str(error))
    if isinstance(error, TooManyPagesError):
        return error_answer(503, "too many pages are open; close some")
    if isinstance(error, TooManyStartsError):
        return error_answer(503, "too many runs are being started; wait until one of them has ended")
    if isinstance(error, OutplayError):
        return error_answer(422, str(error))
    log.error("a request failed", exc_info=error)
    return error_answer(500, "internal error: the log of the dashboard has the reason")


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value, inf_nan_mode="null"), status, media_type="application/json")


class Endpoints:
    """The functions behind the paths. What reads files runs in threads."""

    def __init__(self, catalog: Catalog, store: SeriesStore, events: Events, machine: Machine, starts: Starts) -> None:
        self._catalog, self._store, self._events = catalog, store, events
        self._machine, self._starts = machine, starts
        self._static = StaticFiles()

    async def page(self, _: Request) -> Response:
        return self._static.answer("index.html")

    async def static(self, request: Request) -> Response:
        return self._static.answer(request.path_params["path"])

    async def overview(self, _: Request) -> Response:
        return await asyncio.to_thread(self._overview)

    def _overview(self) -> Response:
        self._catalog.refresh()
        mark = self._catalog.mark  # before the runs: a change in between is told twice, not never
        return _json(
            {
                "results": str(self._catalog.results),
                "version": __version__,
                "at": mark,
                "runs": [entry.run for entry in self._catalog.runs()],
                "studies": [entry.study for entry in self._catalog.studies()],
                "machine": self._machine.sample(),
                "can_control": True,
            }
        )

    async def event_stream(self, request: Request) -> Response:
        # Browsers send the last id when they connect again.
        mark = request.headers.get("last-event-id") or request.query_params.get("since", "")
        return StreamingResponse(
            self._events.stream(mark), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
        )

    async def run(self, request: Request) -> Response:
        run_id = requests.one(request.query_params, "run")

        def read() -> Response:
            entry = self._catalog.fresh_run(run_id)
            return _json(run_details(entry, self._store.metrics(entry)))

        return await asyncio.to_thread(read)

    async def series(self, request: Request) -> Response:
        query = request.query_params
        metric, x, points = requests.one(query, "metric"), requests.x_of(query), requests.points_of(query)
        low, high = requests.bound_of(query, "from", -math.inf), requests.bound_of(query, "to", math.inf)
        ids = requests.several(query, "run")

        def read() -> Response:
            entries = [self._catalog.run(run_id) for run_id in ids]
            found = self._store.curves(entries, metric, x, points, low, high)
            return _json(series_answer(found, metric, x))

        return await asyncio.to_thread(read)

    async def groups(self, request: Request) -> Response:
        query = request.query_params
        metric, x, points = requests.one(query, "metric"), requests.x_of(query), requests.points_of(query)
        keys, ids = requests.several(query, "group"), query.getlist("run")

        def read() -> Response:
            self._catalog.refresh()
            return _json(groups_answer(self._catalog, self._store, keys, ids, metric, x, points))

        return await asyncio.to_thread(read)

    async def metrics(self, request: Request) -> Response:
        ids = requests.several(request.query_params, "run")

        def read() -> Response:
            names = {name for run_id in ids for name in self._store.metrics(self._catalog.run(run_id))}
            return _json({"metrics": sorted(names)})

        return await asyncio.to_thread(read)

    async def diff(self, request: Request) -> Response:
        ids = request.query_params.getlist("run")
        if len(ids) != 2:
            raise HTTPException(422, "a diff needs exactly two runs: run=A&run=B")
        return await asyncio.to_thread(lambda: _json(difference(*(self._catalog.run(run_id) for run_id in ids))))

    async def study(self, request: Request) -> Response:
        study_id = requests.one(request.query_params, "study")

        def read() -> Response:
            self._catalog.refresh()
            entry = self._catalog.study(study_id)
            return _json(study_details(entry, {run.id for run in self._catalog.runs()}))

        return await asyncio.to_thread(read)

    async def video(self, request: Request) -> Response:
        query = request.query_params
        run_id, name = requests.one(query, "run"), requests.one(query, "name")
        entry = await asyncio.to_thread(self._catalog.run, run_id)
        found = {video.name: video.path for video in await asyncio.to_thread(videos_of, entry)}
        if name not in found:
            raise UnknownError("the run has no such video")
        return FileResponse(found[name], media_type=mimetypes.guess_type(name)[0] or "application/octet-stream")

    async def control(self, request: Request) -> Response:
        given = requests.object_of(await body_of(request, _MAX_BODY), ("run", "action"))
        if given.keys() != {"run", "action"}:
            raise HTTPException(422, 'the body needs the keys "run" and "action"')

        def send() -> Response:
            return _json({"done": control.request(self._catalog.fresh_run(given["run"]), given["action"])})

        return await asyncio.to_thread(send)

    async def recipes(self, _: Request) -> Response:
        return _json({"recipes": await asyncio.to_thread(recipes)})

    async def start(self, request: Request) -> Response:
        given = requests.object_of(await body_of(request, _MAX_BODY), ("recipe", "text", "name"))
        return _json(await self._starts.start(given), 202)

    async def list_starts(self, _: Request) -> Response:
        return _json({"starts": await asyncio.to_thread(self._starts.listed)})
