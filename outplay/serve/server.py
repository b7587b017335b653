"""PolicyServer: listens, reloads new checkpoints, and stops without dropping a request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from outplay.errors import OutplayError
from outplay.serve.answering import Acting
from outplay.serve.app import make_app
from outplay.serve.metrics import ServerMetrics
from outplay.serve.settings import ServeSettings
from outplay.serve.sockets import Connections
from outplay.serve.source import PolicySource
from outplay.web.listening import Application, WebServer

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
        self.settings = settings = settings or ServeSettings()
        self._source = source
        self._web = WebServer(
            settings.host, settings.port, self._application, settings.stop_timeout_s, settings.max_body_bytes
        )
        try:
            served = source.newest()
        except BaseException:
            self._web.release()
            raise
        assert served is not None, "the first policy of a source is new"
        self.served = served  # as it was at the start

    @property
    def url(self) -> str:
        return self._web.url

    def run(self, on_start: Callable[[], None] | None = None) -> bool:
        """Serve until SIGTERM or SIGINT. Requests under way are answered; a second signal ends the server at once.

        Returns whether all requests were answered.
        """
        return self._web.run(on_start)

    def stop(self) -> None:
        """Stop serving, from any thread. Requests under way are answered."""
        self._web.stop()

    def __enter__(self) -> PolicyServer:
        self._web.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._web.__exit__()

    def _application(self) -> Application:
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

        async def close() -> None:
            acting.batcher.stop_waiting()
            await connections.close(self.settings.stop_timeout_s)

        return Application(make_app(acting, connections, background), close)

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
