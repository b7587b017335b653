"""Joining a cluster: checks that it is reachable, and sends it the modules of this program."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from outplay.engine.slots import thread_caps
from outplay.errors import EngineError

EXCLUDED = [".git", ".venv", "__pycache__", "*.pyc", ".mypy_cache", ".ruff_cache", ".pytest_cache"]


def cluster_runtime_env() -> dict[str, Any]:
    """The runtime environment with which this program joins a Ray cluster."""
    import outplay

    wanted: dict[str, Any] = {
        "env_vars": thread_caps(1),
        "py_modules": [str(Path(outplay.__file__).parent)],
        "working_dir": str(_user_folder()),
        "excludes": EXCLUDED,
    }
    # `ray job submit` may have set some of these already, and Ray refuses to set them twice.
    submitted = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}").get("runtime_env") or {}
    set_already = submitted.get("env_vars", {})
    wanted["env_vars"] = {name: value for name, value in wanted["env_vars"].items() if name not in set_already}
    if "working_dir" in submitted:
        del wanted["working_dir"], wanted["excludes"]
    else:
        _check_size(Path(wanted["working_dir"]))
    return {name: value for name, value in wanted.items() if name == "env_vars" or name not in submitted}


def _user_folder() -> Path:
    """The folder of the user's modules: that of the program, or the working directory for installed commands."""
    main = getattr(sys.modules["__main__"], "__file__", None)
    here = Path.cwd()
    if main is None:
        return here
    folder = Path(main).resolve().parent
    return here if folder.is_relative_to(Path(sys.prefix).resolve()) else folder


MAX_BYTES = 400 * 1024 * 1024  # Ray's own limit is 500 MB, checked only after packing


def _check_size(folder: Path) -> None:
    total = 0
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in EXCLUDED]
        total += sum(
            os.path.getsize(os.path.join(parent, f)) for f in files if not os.path.islink(os.path.join(parent, f))
        )
        if total > MAX_BYTES:
            raise EngineError(
                f"the folder {folder} is sent to the cluster's nodes, so that they can import your modules, but it has "
                f"more than {MAX_BYTES // 2**20} MB; put your program into a folder of its own, or submit it with "
                f"`ray job submit --working-dir`"
            )


def check_reachable(address: str) -> None:
    """Raise EngineError if nothing listens at this address. Ray itself would wait for minutes without a message."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "//" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise EngineError(f"cannot join the Ray cluster at address={address!r}: no connection ({error})") from error
