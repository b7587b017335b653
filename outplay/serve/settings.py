"""Settings of a server, and where it may listen."""

from __future__ import annotations

from dataclasses import dataclass, field

from outplay.errors import ConfigError
from outplay.web.addresses import check_port, check_token, is_loopback


@dataclass(frozen=True)
class ServeSettings:
    """Settings of a PolicyServer. Raises ConfigError if one is invalid.

    host               the address to listen on; beyond loopback only with a token
    port               0: a free port
    token              clients send it as `Authorization: Bearer TOKEN`
    max_batch_size     observations per batch, and per request
    max_wait_ms        how long the first request of a batch waits for others, while no batch is computed
    explore            sample actions instead of acting greedily
    check_bounds       refuse observations outside of the bounds of a Box space
    max_sessions       sessions and WebSocket connections at the same time
    session_timeout_s  a session ends after this long without a request
    max_body_bytes     of a request, or of a WebSocket message
    reload_interval_s  seconds between two looks for a new checkpoint of the run; 0: never
    stop_timeout_s     how long requests may take that are under way when the server stops
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = field(default=None, repr=False)
    max_batch_size: int = 64
    max_wait_ms: float = 0.0
    explore: bool = False
    check_bounds: bool = True
    max_sessions: int = 1000
    session_timeout_s: float = 600.0
    max_body_bytes: int = 16 * 2**20
    reload_interval_s: float = 1.0
    stop_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        check_port(self.port)
        for name in ("max_batch_size", "max_sessions", "max_body_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_wait_ms", "session_timeout_s", "reload_interval_s", "stop_timeout_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be a finite number of at least 0, not {getattr(self, name)}")
        check_token(self.token)
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(
                f"host {self.host!r} can be reached from other machines: set a token with OUTPLAY_TOKEN or --token, or "
                "use --host 127.0.0.1"
            )
