"""Backends: how the workers of a group communicate."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from outplay.train.configs import TorchConfig
from outplay.train.worker import Place


class NoBackend:
    """For one worker that communicates with nobody."""

    def rendezvous(self, host: str, world_size: int) -> dict[str, Any]:  # noqa: ARG002
        return {}

    @contextmanager
    def connected(self, place: Place, meeting: dict[str, Any]) -> Iterator[None]:  # noqa: ARG002
        yield


class TorchBackend:
    """The default process group of torch.distributed: NCCL with GPUs, gloo without."""

    def __init__(self, config: TorchConfig) -> None:
        self._config = config
        self._store: Any = None

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self._config.timeout_s)

    def rendezvous(self, host: str, world_size: int) -> dict[str, Any]:
        """Rank 0 has the store through which the workers find each other. The port is free: it is open from here on."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        self._store = TCPStore(
            host, 0, world_size, is_master=True, wait_for_workers=False, timeout=self._timeout, use_libuv=True
        )
        return {"port": self._store.port}

    @contextmanager
    def connected(self, place: Place, meeting: dict[str, Any]) -> Iterator[None]:
        import torch
        from torch import distributed

        if meeting["is_local"]:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if os.path.exists("/sys/class/net/lo") else "lo0")
        store = self._store
        if store is None:
            store = distributed.TCPStore(  # type: ignore[attr-defined]
                meeting["host"], meeting["port"], place.world_size, is_master=False, timeout=self._timeout
            )
        uses_cuda = place.use_gpu and torch.cuda.is_available()
        distributed.init_process_group(
            self._config.backend or ("cpu:gloo,cuda:nccl" if uses_cuda else "gloo"),
            store=store,
            rank=place.world_rank,
            world_size=place.world_size,
            timeout=self._timeout,
        )
        # If the loop raises, its connections stay open: the others wait, and are killed, so its error is the only one.
        has_ended = False
        try:
            yield
            has_ended = True
        finally:
            if has_ended or place.world_size == 1:  # on the inline engine, the process is the user's
                distributed.destroy_process_group()
                self._store = None
