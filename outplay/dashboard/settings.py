"""Settings of the dashboard."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from outplay.errors import ConfigError
from outplay.runs.results import results_folder
from outplay.web.addresses import check_port, check_token, is_loopback

PORT = 8265


@dataclass(frozen=True)
class DashboardSettings:
    """Settings of a DashboardServer. Raises ConfigError if one is invalid.

    results       the folder of all runs
    host          the address to listen on; beyond loopback there is always a token
    port          0: a free port
    token         requests need it; None: one is made if the host is not loopback
    memory_bytes  for the summaries of metrics; those that were not asked for longest are forgotten
    trust         whether the player imports what checkpoints name: environments, custom models
    """

    results: Path = field(default_factory=lambda: results_folder(None))
    host: str = "127.0.0.1"
    port: int = PORT
    token: str | None = field(default=None, repr=False)
    memory_bytes: int = 256 * 2**20
    trust: bool = False

    def __post_init__(self) -> None:
        check_port(self.port)
        check_token(self.token)
        if self.results.exists() and not self.results.is_dir():
            raise ConfigError(f"the results folder {self.results} is a file; give the folder in which it lies")
        if self.token is None and not is_loopback(self.host):
            object.__setattr__(self, "token", secrets.token_urlsafe(24))
