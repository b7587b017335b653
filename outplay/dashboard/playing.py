"""The server's side of watching: starts a player process for a WebSocket, and relays its messages to the browser.

To the browser: a text (JSON), followed by one binary message (JPEG) if the text has {"frame": true}.
From the browser: {"command": "pause"}, "resume", "step", {"command": "restart", "seed": 3}, {"command": "speed",
"value": 30}, {"command": "checkpoint", "name": NAME or "newest"}.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from outplay.dashboard.budget import FrameBudget
from outplay.dashboard.messages import HEADER, Message, parsed, sizes
from outplay.runs.folder import RunFolder

# -P: modules that lie in the working directory, perhaps someone else's run folder, are not imported.
COMMAND = (sys.executable, "-P", "-m", "outplay.dashboard.player")
MAX_PLAYERS = 4
_NEWEST = "newest"
_MAX_COMMAND = 1000  # characters
_MAX_WAITING = 200  # messages for a slow browser; then the oldest steps are dropped
_MAX_STDERR = 4096  # bytes
_MAX_SEED = 2**63 - 1
_COMMANDS = ("pause", "resume", "step", "restart", "speed", "checkpoint")
_TRY_LATER = 1013

_players: set[Process] = set()  # of this process, all servers together
_starting = 0


async def play(
    websocket: WebSocket, folder: RunFolder, checkpoint: str | None, seed: int | None, trust: bool = False
) -> None:
    """Let a checkpoint of a run play for a browser until it leaves. The caller has checked who asks.

    `checkpoint`: its name; None or "newest": the newest one, and at each episode the newest one again. `seed`: default
    that of the run. `trust`: import what the checkpoint names.
    """
    global _starting
    if websocket.application_state is WebSocketState.CONNECTING:
        await websocket.accept()
    if len(_players) + _starting >= MAX_PLAYERS:
        sentence = f"{MAX_PLAYERS} players run already; leave one of the other pages that show a game"
        await refuse(websocket, sentence, _TRY_LATER)
        return
    _starting += 1
    try:
        problem = await asyncio.to_thread(_problem, folder, checkpoint, seed)
        if problem:
            await refuse(websocket, problem)
            return
        process = await _start()
    finally:
        _starting -= 1
    _players.add(process)
    try:
        request = {"run": str(folder.path.absolute()), "checkpoint": checkpoint, "seed": seed, "trust": trust}
        _write(process, request)
        await _Relay(websocket, folder, process).run()
    finally:
        _players.discard(process)
        _kill(process)
        await process.wait()


def _problem(folder: RunFolder, checkpoint: str | None, seed: int | None) -> str:
    """Why this cannot be played; empty if it can be tried."""
    names = [path.name for path in folder.checkpoints()]
    if not names:
        return "the run has no checkpoint yet; the first one can be asked for with `checkpoint now`"
    if checkpoint not in (None, _NEWEST, *names):
        return f"the run has no checkpoint {str(checkpoint)[:100]!r} any more"
    if seed is not None and not 0 <= seed <= _MAX_SEED:
        return f"the seed must be an integer from 0 to {_MAX_SEED}"
    return ""


async def refuse(websocket: WebSocket, sentence: str, code: int = 1000) -> None:
    """Tell the browser in one sentence why nothing is played, and close the connection."""
    with suppress(WebSocketDisconnect, RuntimeError):  # it has left already
        await websocket.send_text(json.dumps({"type": "error", "error": sentence, "fatal": True}))
        await websocket.close(code)


async def _start() -> Process:
    """Start a player with one thread for each of its libraries, in a process group of its own."""
    # Without the token of the dashboard: environments run code of others.
    environment = {name: value for name, value in os.environ.items() if name != "OUTPLAY_TOKEN"}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return await asyncio.create_subprocess_exec(
        *COMMAND,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=environment | threads,
        start_new_session=True,
    )


def _write(process: Process, message: Message) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # it has ended: reading its messages tells
        process.stdin.write(json.dumps(message).encode() + b"\n")


def _kill(process: Process) -> None:
    """End a player with all that its environment has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class Outbox:
    """Messages on their way to the browser. Of the waiting ones, only the newest keeps its picture."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Message, bytes]] = deque()
        self._is_ready = asyncio.Event()
        self._is_closed = False

    def put(self, message: Message, picture: bytes = b"") -> None:
        if picture:
            self._waiting = deque((other, b"") for other, _ in self._waiting)
        self._waiting.append((message, picture))
        if len(self._waiting) > _MAX_WAITING:
            self._drop_oldest_step()
        self._is_ready.set()

    def _drop_oldest_step(self) -> None:
        for index, (message, _) in enumerate(self._waiting):
            if message["type"] == "step" and not (message.get("terminated") or message.get("truncated")):
                del self._waiting[index]
                return
        self._waiting.popleft()

    def close(self) -> None:
        """There will be no more messages."""
        self._is_closed = True
        self._is_ready.set()

    async def get(self) -> tuple[Message, bytes] | None:
        """The next message; None after the last one."""
        while not self._waiting:
            if self._is_closed:
                return None
            self._is_ready.clear()
            await self._is_ready.wait()
        return self._waiting.popleft()


class _Relay:
    """Between one player and one browser."""

    def __init__(self, websocket: WebSocket, folder: RunFolder, process: Process) -> None:
        self._websocket, self._folder, self._process = websocket, folder, process
        self._outbox = Outbox()

    async def run(self) -> None:
        """Relay until the player ends or the browser leaves."""
        reading = asyncio.create_task(self._read())
        ends = asyncio.create_task(self._send()), asyncio.create_task(self._obey())
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, *ends):
                task.cancel()
            await asyncio.gather(reading, *ends, return_exceptions=True)

    # From the player to the browser.

    async def _read(self) -> None:
        """Read the messages of the player until it ends. If it did not say why, the exit code and stderr tell."""
        assert self._process.stdout is not None
        errors = asyncio.create_task(self._last_words())
        budget, has_failed = FrameBudget(), False
        try:
            while True:
                text, picture = sizes(await self._process.stdout.readexactly(HEADER.size))
                message = parsed(await self._process.stdout.readexactly(text))
                frame = await self._process.stdout.readexactly(picture)
                has_failed = has_failed or (message["type"] == "error" and message.get("fatal") is True)
                self._outbox.put(message, frame if frame and budget.take(time.monotonic(), len(frame)) else b"")
        except (asyncio.IncompleteReadError, ValueError):
            _kill(self._process)  # what it started may hold its stderr
            code, words = await self._process.wait(), await errors
            if not has_failed:
                sentence = f"the player has ended with exit code {code}" + (f": {words}" if words else "")
                self._outbox.put({"type": "error", "error": sentence, "fatal": True})
        finally:
            errors.cancel()
            self._outbox.close()

    async def _last_words(self) -> str:
        """The last line that the player has printed."""
        assert self._process.stderr is not None
        end = b""
        while data := await self._process.stderr.read(_MAX_STDERR):
            end = (end + data)[-_MAX_STDERR:]
        lines = [line.strip() for line in end.decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""

    async def _send(self) -> None:
        """Send messages as fast as the browser takes them. Ends after the player's last one, or if it has left."""
        with suppress(WebSocketDisconnect, RuntimeError):
            while (next_one := await self._outbox.get()) is not None:
                message, picture = next_one
                if message["type"] == "step":
                    message["frame"] = bool(picture)
                await self._websocket.send_text(json.dumps(message))
                if picture:
                    await self._websocket.send_bytes(picture)
            await self._websocket.close()

    # From the browser to the player.

    async def _obey(self) -> None:
        """Hand the browser's commands to the player. Ends when the browser has left."""
        with suppress(WebSocketDisconnect, RuntimeError):
            while True:
                received = await self._websocket.receive()
                if received["type"] == "websocket.disconnect":
                    return
                command = await self._checked(received.get("text"))
                if isinstance(command, str):
                    self._outbox.put({"type": "error", "error": command, "fatal": False})
                else:
                    _write(self._process, command)

    async def _checked(self, text: str | None) -> Message | str:
        """A command for the player, or a sentence that says what is wrong with it."""
        try:
            given = json.loads(text) if text is not None and len(text) <= _MAX_COMMAND else None
        except (ValueError, RecursionError):
            given = None
        name = given.get("command") if isinstance(given, dict) else None
        if not isinstance(given, dict) or name not in _COMMANDS:
            return f'a command is {{"command": NAME}} with one of {", ".join(_COMMANDS)}'
        if name == "restart":
            seed = given.get("seed")
            if seed is not None and (type(seed) is not int or not 0 <= seed <= _MAX_SEED):
                return f"restart: the seed must be an integer from 0 to {_MAX_SEED}"
            return {"command": name, "seed": seed}
        if name == "speed":
            value = given.get("value")
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
                return "speed: the value must be a number of steps per second"
            return {"command": name, "value": value}
        if name == "checkpoint":
            wanted = given.get("name")
            names = {path.name for path in await asyncio.to_thread(self._folder.checkpoints)}
            if not isinstance(wanted, str) or wanted not in (_NEWEST, *names):
                return f"the run has no checkpoint {str(wanted)[:100]!r} any more"
            return {"command": name, "name": wanted}
        return {"command": name}
