"""Joins a Ray cluster, or starts a local Ray."""

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
    """Join a cluster, or start Ray on this machine."""
    if ray.is_initialized():
        # The user's program has connected to Ray: use this connection, and do not close it.
        return RayEngine(connected=False, fixed_resources=False, runtime_env={"env_vars": thread_caps(1)})
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address in (None, "local"):
        _start_ray(num_cpus, object_store_bytes)
        return RayEngine(connected=True, fixed_resources=True)
    if num_cpus is not None or object_store_bytes is not None:
        raise ValueError(f"num_cpus and object_store_bytes cannot be set for a running cluster (address={address!r})")
    check_reachable(address)
    try:
        ray.init(address=address, runtime_env=cluster_runtime_env(), log_to_driver=True, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise EngineError(f"cannot join the Ray cluster at address={address!r}: {error}") from error
    return RayEngine(connected=True, fixed_resources=False)


def _start_ray(num_cpus: int | None, object_store_bytes: int | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
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
    """Make Ray listen on 127.0.0.1 only. Otherwise it listens on all addresses, even with _node_ip_address set.

    This disables clusters, with a variable that is meant for macOS and Windows but works on Linux too. Ray's processes
    read it from their environment. This process has read it when Ray was imported, so the constant is set too.
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
