"""PolicyServer: listens, reloads new checkpoints, and stops without dropping a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from outplay.errors import ConfigError, OutplayError
from outplay.serve.answering import Acting
from outplay.serve.app import make_app
from outplay.serve.metrics import ServerMetrics
from outplay.serve.settings import ServeSettings
from outplay.serve.sockets import Connections
from outplay.serve.source import PolicySource

log = logging.getLogger("outplay")

_EXPIRY_INTERVAL_S = 10.0


class PolicyServer:
    """Serves the newest checkpoint of a run, or one checkpoint.

    >>> with PolicyServer(PolicySource.find("cartpole"), ServeSettings(port=0)) as server:
    ...     httpx.post(f"{server.url}/act", json={"observation": [0.1, 0.0, 0.02, 0.0]}).json()
    {'action': 1, 'iteration': 12}

    As a context, it runs in a thread. `run` serves in the main thread until SIGTERM or Ctrl-C.
    """

    def __init__(self, source: PolicySource, settings: ServeSettings | None = None) -> None:
        """Load the policy and bind the port. Raises an OutplayError if one of them fails."""
        self.settings = settings or ServeSettings()
        self._source = source
        self._socket = _bound(self.settings.host, self.settings.port)
        try:
            served = source.newest()
        except BaseException:
            self._socket.close()
            raise
        assert served is not None, "the first policy of a source is new"
        self.served = served  # as it was at the start
        self._server: _Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self, on_start: Callable[[], None] | None = None) -> bool:
        """Serve until SIGTERM or SIGINT. Requests under way are answered; a second signal ends the server at once.

        Returns whether all requests were answered.
        """
        asyncio.run(self._serve(on_start or (lambda: None), with_signals=True))
        return self._server is not None and self._server.answered_all

    def stop(self) -> None:
        """Stop serving, from any thread. Requests under way are answered."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._stopping.set)

    def __enter__(self) -> PolicyServer:
        started = threading.Event()
        self._thread = threading.Thread(target=self._run_in_thread, args=(started,), name="server", daemon=True)
        self._thread.start()
        started.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def _run_in_thread(self, started: threading.Event) -> None:
        try:
            asyncio.run(self._serve(started.set, with_signals=False))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the start
            self._failure = error
        finally:
            started.set()

    async def _serve(self, on_start: Callable[[], None], with_signals: bool) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        acting, connections = Acting(self.served, self.settings, ServerMetrics()), Connections()
        _add_gauges(acting, connections)

        @asynccontextmanager
        async def background() -> AsyncIterator[None]:
            acting.batcher.start()
            tasks = [asyncio.create_task(self._reload(acting)), asyncio.create_task(_expire(acting))]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await acting.batcher.stop()

        self._server = _Server(self._uvicorn_config(make_app(acting, connections, background)), on_start)
        with self._signals() if with_signals else contextlib.nullcontext():
            serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                acting.batcher.stop_waiting()
                await connections.close(self.settings.stop_timeout_s)
                self._server.should_exit = True
            stopping.cancel()
            await serving

    def _uvicorn_config(self, app: object) -> uvicorn.Config:
        return uvicorn.Config(
            app,  # type: ignore[arg-type]
            http="h11",
            ws="websockets-sansio",
            ws_max_size=self.settings.max_body_bytes,
            ws_max_queue=4,
            ws_per_message_deflate=False,  # a small message could expand to a huge one
            lifespan="on",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(self.settings.stop_timeout_s)),
        )

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop the server; the second one does not wait for requests under way."""
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            assert self._stopping is not None
            if self._stopping.is_set() and self._server is not None:
                self._server.should_exit = self._server.force_exit = True
                logging.getLogger("uvicorn.error").disabled = True  # it would report each request that is dropped
            self._stopping.set()

        handled = (signal.SIGTERM, signal.SIGINT)
        for number in handled:
            loop.add_signal_handler(number, on_signal)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    async def _reload(self, acting: Acting) -> None:
        """Load each new checkpoint of the run in a thread. The batch under way ends with the old weights."""
        if self._source.run is None or not self.settings.reload_interval_s:
            return
        reported = ""
        while True:
            await asyncio.sleep(self.settings.reload_interval_s)
            try:
                served = await asyncio.to_thread(self._source.newest)
            except (OutplayError, OSError) as error:  # damaged, or removed meanwhile: the old one stays
                if str(error) != reported:  # once per checkpoint, not at each look
                    acting.metrics.reload_failures.add()
                    log.warning("the new checkpoint cannot be served: %s", error)
                reported = str(error)
                continue
            reported = ""
            if served is not None:
                acting.batcher.served = served
                acting.metrics.reloads.add()
                log.info("serving iteration %s (%s)", served.iteration, served.checkpoint)


class _Server(uvicorn.Server):
    """Without uvicorn's signal handlers, which end the process with the signal. Calls `on_start` when it listens."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start
        self.answered_all = False

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        started = time.monotonic()
        await super().shutdown(sockets)
        limit = self.config.timeout_graceful_shutdown
        self.answered_all = not self.force_exit and (limit is None or time.monotonic() - started < limit)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()


async def _expire(acting: Acting) -> None:
    while True:
        await asyncio.sleep(min(_EXPIRY_INTERVAL_S, max(0.05, acting.settings.session_timeout_s)))
        acting.sessions.expire()


def _add_gauges(acting: Acting, connections: Connections) -> None:
    started = time.time()
    gauge = acting.metrics.gauge
    gauge("outplay_sessions", "Sessions, WebSocket connections included.", lambda: len(acting.sessions))
    gauge("outplay_websocket_connections", "Open WebSocket connections.", lambda: len(connections))
    gauge("outplay_waiting_observations", "Observations that wait for a batch.", lambda: acting.batcher.waiting_rows)
    gauge("outplay_checkpoint_iteration", "Training iteration of the checkpoint.", lambda: acting.served.iteration)
    gauge("outplay_start_time_seconds", "When the server started, in seconds since 1970.", lambda: started)


def _bound(host: str, port: int) -> socket.socket:
    """A socket that is bound to the address. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise ConfigError(f"the server cannot listen on {host}, port {port}: {reason}") from error
    return bound
