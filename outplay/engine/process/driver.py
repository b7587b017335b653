"""The driver: starts the hub, and stops it when the program ends."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile

from outplay.engine.endings import CLOSE_S
from outplay.engine.process.engine import ProcessEngine
from outplay.engine.process.reaping import raise_file_limit
from outplay.engine.process.wire import DRIVER, HUB
from outplay.errors import EngineError
from outplay.machine import count_cpus, visible_gpus
from outplay.memory import machine_memory

# Without a line of settings, the driver was killed meanwhile.
_BOOT = (
    "import sys, json; settings = json.loads(sys.stdin.readline() or sys.exit()); sys.path[:] = settings['path']; "
    "from outplay.engine.process.hub import main; main(settings)"
)
_SHARE_OF_MEMORY = 0.3
_MAX_FOLDER_LENGTH = 80  # the path of a Unix socket has at most about 100 characters
_STOP_S = CLOSE_S + 5.0


class DriverEngine(ProcessEngine):
    """The engine as the user's program sees it."""

    def __init__(self, folder: str, key: bytes, hub: subprocess.Popen[bytes]) -> None:
        super().__init__(folder, key, DRIVER)
        self._hub = hub
        self._folder = folder
        self.on_hub_lost = lambda: self.post.fail("the engine has ended: its hub process was killed")

    def shutdown(self) -> None:
        self.on_hub_lost = lambda: None
        self.post.send(HUB, ("stop",))
        try:
            self._hub.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._hub.kill()  # the workers notice, and exit
            self._hub.wait()
        self.post.close("the engine was shut down")
        shutil.rmtree(self._folder, ignore_errors=True)  # in case the hub was killed; otherwise it has done this


def start_process_engine(num_cpus: int | None, object_store_bytes: int | None) -> ProcessEngine:
    """Start a hub and connect to it. Workers are started on demand."""
    raise_file_limit()
    folder = _private_folder()
    key = secrets.token_bytes(32)
    ready_read, ready_write = os.pipe()
    settings = {
        "driver": os.getpid(),
        "folder": folder,
        "key": key.hex(),
        "path": [entry or os.getcwd() for entry in sys.path],
        "cpus": num_cpus or count_cpus(),
        "gpus": visible_gpus(),
        "store_bytes": object_store_bytes or int(machine_memory() * _SHARE_OF_MEMORY),
        "ready_fd": ready_write,
    }
    try:
        hub = subprocess.Popen(
            # In a new session: Ctrl-C in the terminal must reach the driver only.
            [sys.executable, "-c", _BOOT],
            stdin=subprocess.PIPE,
            pass_fds=[ready_write],
            start_new_session=True,
        )
        os.close(ready_write)
        assert hub.stdin is not None
        with hub.stdin as stdin:
            stdin.write(json.dumps(settings).encode() + b"\n")
        os.read(ready_read, 1)  # returns at the end of the stream: the hub listens, or it has crashed
        engine = DriverEngine(folder, key, hub)
    except (OSError, EngineError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise EngineError(f"the engine's hub process did not start: {error}") from error
    finally:
        os.close(ready_read)
    engine.start()
    return engine


def _private_folder() -> str:
    """A folder for the sockets that only this user can open."""
    folder = tempfile.mkdtemp(prefix="outplay-")
    if len(folder) > _MAX_FOLDER_LENGTH:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="outplay-", dir="/tmp")
    return folder
