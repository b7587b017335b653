"""WebServer: an ASGI application on a port, in a thread or in the main thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from outplay.web.addresses import bound_socket, url_of


@dataclass(frozen=True)
class Application:
    """What a WebServer serves. `close` is called when it stops: it ends WebSockets and streams."""

    app: ASGIApp
    close: Callable[[], Awaitable[None]]


class WebServer:
    """Listens, and stops without dropping a request.

    As a context, it runs in a thread. `run` serves in the main thread until SIGTERM or Ctrl-C.
    """

    def __init__(
        self,
        host: str,
        port: int,
        make: Callable[[], Application],
        stop_timeout_s: float = 30.0,
        max_message_bytes: int = 2**20,
    ) -> None:
        """Bind the port. Raises ConfigError if this fails.

        make               called in the event loop, when the server starts
        stop_timeout_s     how long requests may take that are under way when the server stops
        max_message_bytes  of a WebSocket
        """
        self._socket = bound_socket(host, port)
        logging.getLogger("uvicorn.error").addFilter(_is_no_refusal)
        self._make = make
        self._stop_timeout_s = stop_timeout_s
        self._max_message_bytes = max_message_bytes
        self._server: _Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        return url_of(self._socket)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def release(self) -> None:
        """Close the port of a server that was not started."""
        self._socket.close()

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

    def __enter__(self) -> WebServer:
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
        application = self._make()
        self._server = _Server(self._uvicorn_config(application.app), on_start)
        with self._signals() if with_signals else contextlib.nullcontext():
            serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
            stopping = asyncio.create_task(self._stopping.wait())
            await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                await application.close()
                self._server.should_exit = True
            stopping.cancel()
            await serving

    def _uvicorn_config(self, app: ASGIApp) -> uvicorn.Config:
        return uvicorn.Config(
            app,
            http="h11",
            ws="websockets-sansio",
            ws_max_size=self._max_message_bytes,
            ws_max_queue=4,
            ws_per_message_deflate=False,  # a small message could expand to a huge one
            lifespan="on",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(self._stop_timeout_s)),
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


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """False for what uvicorn logs as an error whenever a WebSocket was answered with 401, 403 or 404."""
    return "without completing handshake" not in record.getMessage()
