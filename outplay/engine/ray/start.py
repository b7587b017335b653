"""Joining a Ray cluster, or starting a Ray of our own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import ray
import ray._private.ray_constants
import ray.exceptions

from outplay.engine.ray.engine import RayEngine
from outplay.engine.shipping import check_reachable, cluster_runtime_env
from outplay.engine.slots import thread_caps
from outplay.errors import EngineError


def start_ray_engine(num_cpus: int | None, address: str | None, object_store_bytes: int | None) -> RayEngine:
    """Join a cluster, or start a Ray of our own on this machine."""
    if ray.is_initialized():
        # The program made its own connection: use it, and leave it alone at the end.
        return RayEngine(connected=False, fixed_resources=False, runtime_env={"env_vars": thread_caps(1)})
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address in (None, "local"):
        _start_ray(num_cpus, object_store_bytes)
        return RayEngine(connected=True, fixed_resources=True)
    if num_cpus is not None or object_store_bytes is not None:
        raise ValueError(f"num_cpus and object_store_bytes are the cluster's to decide at address={address!r}")
    check_reachable(address)
    try:
        ray.init(address=address, runtime_env=cluster_runtime_env(), log_to_driver=True, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise EngineError(f"cannot join the Ray cluster at address={address!r}: {error}") from error
    return RayEngine(connected=True, fixed_resources=False)


def _start_ray(num_cpus: int | None, object_store_bytes: int | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing leaves this machine unasked
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    with _on_loopback():
        ray.init(
            address="local",
            num_cpus=num_cpus,
            object_store_memory=object_store_bytes,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            logging_level="error",
            runtime_env={"env_vars": {**thread_caps(1), "PYTHONPATH": path}},
        )


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Ray listens on all of the machine's addresses, even when told 127.0.0.1, unless its clusters are switched off.

    The switch is meant for macOS and Windows, where that is the default, and works on Linux too. Its processes read
    it from their environment, this one has read it when Ray was imported.
    """
    variable, constants = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", ray._private.ray_constants
    before = os.environ.get(variable), constants.ENABLE_RAY_CLUSTER
    os.environ[variable], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before[1]
        if before[0] is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before[0]
