"""The server's side of watching: a WebSocket to a real player process."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from outplay.dashboard import DashboardServer, DashboardSettings, playing
from outplay.runs.folder import RunFolder
from tests.cli.common import wait_for
from tests.dashboard.test_player import copied, pole, train  # noqa: F401 - a fixture


def application(folder: RunFolder, trust: bool = False) -> Starlette:
    async def endpoint(websocket: WebSocket) -> None:
        seed = websocket.query_params.get("seed")
        checkpoint = websocket.query_params.get("checkpoint")
        await playing.play(websocket, folder, checkpoint, None if seed is None else int(seed), trust)

    return Starlette(routes=[WebSocketRoute("/api/play", endpoint)])


@contextmanager
def serving(folder: RunFolder, trust: bool = False) -> Iterator[str]:
    """The address of a real server."""
    config = uvicorn.Config(application(folder, trust), port=0, log_level="warning", ws="websockets-sansio")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/api/play"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def watching(folder: RunFolder, query: str = "", trust: bool = False) -> Iterator[ClientConnection]:
    with serving(folder, trust) as address, connect(f"{address}?{query}", proxy=None) as session:
        yield session


def receive(session: ClientConnection) -> tuple[dict[str, Any], bytes]:
    message = json.loads(session.recv(60))
    if not message.get("frame"):
        return message, b""
    picture = session.recv(60)
    assert isinstance(picture, bytes)
    return message, picture


def closing_code(session: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        session.recv(60)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


def first(session: ClientConnection, kind: str) -> dict[str, Any]:
    while (message := receive(session)[0])["type"] != kind:
        pass
    return message


def pids() -> list[int]:
    return [process.pid for process in playing._players]


def test_messages_and_commands_are_relayed(pole: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("OUTPLAY_TOKEN", "secret")
    with watching(pole, "checkpoint=checkpoint_000001&seed=3") as session:
        ready, _ = receive(session)
        assert (ready["type"], ready["checkpoint"], ready["seed"]) == ("ready", "checkpoint_000001", 3)
        step, picture = receive(session)
        assert (step["step"], step["frame"], picture[:2]) == (0, True, b"\xff\xd8")  # a JPEG
        session.send(json.dumps({"command": "pause"}))
        session.send(json.dumps({"command": "checkpoint", "name": "newest"}))
        assert first(session, "ready")["checkpoint"] == "checkpoint_000003"
        assert receive(session)[0]["step"] == 0
        session.send(json.dumps({"command": "step"}))
        assert receive(session)[0]["step"] == 1
        session.send(json.dumps({"command": "restart", "seed": 9}))
        step, _ = receive(session)
        assert (step["step"], step["seed"]) == (0, 9)
        (pid,) = pids()
        assert psutil.Process(pid).nice() == 19
        assert "OUTPLAY_TOKEN" not in psutil.Process(pid).environ()
    wait_for(lambda: not psutil.pid_exists(pid))
    assert pids() == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "a command is"),
        ("[]", "a command is"),
        ('{"command": "dance"}', "a command is"),
        ('{"command": ["pause"]}', "a command is"),
        ("[" * 900, "a command is"),
        (json.dumps({"command": "pause", "x": "y" * 2000}), "a command is"),
        ('{"command": "speed"}', "speed: the value must be a number"),
        ('{"command": "speed", "value": true}', "speed: the value must be a number"),
        ('{"command": "speed", "value": NaN}', "speed: the value must be a number"),
        ('{"command": "restart", "seed": -1}', "restart: the seed must be an integer"),
        ('{"command": "restart", "seed": 1.5}', "restart: the seed must be an integer"),
        ('{"command": "checkpoint", "name": "../../secret"}', "has no checkpoint '../../secret' any more"),
        ('{"command": "checkpoint", "name": ["newest"]}', "any more"),
        ('{"command": "checkpoint"}', "any more"),
    ],
)
def test_commands_are_checked(pole: RunFolder, text: str, sentence: str) -> None:  # noqa: F811
    relay = playing._Relay(None, pole, None)  # type: ignore[arg-type]
    answer = asyncio.run(relay._checked(text))
    assert isinstance(answer, str)
    assert sentence in answer


def test_a_wrong_command_is_answered_and_the_game_goes_on(pole: RunFolder) -> None:  # noqa: F811
    with watching(pole) as session:
        first(session, "ready")
        session.send("dance")
        error = first(session, "error")
        assert error["fatal"] is False
        session.send(b"\x00\x01")
        assert first(session, "error")["fatal"] is False
        session.send(json.dumps({"command": "restart", "seed": 4}))
        while first(session, "step")["seed"] != 4:
            pass


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("checkpoint=checkpoint_000009", "the run has no checkpoint 'checkpoint_000009' any more"),
        ("checkpoint=../../it", "the run has no checkpoint '../../it' any more"),
        ("seed=-1", "the seed must be an integer from 0 to"),
    ],
)
def test_what_cannot_be_played_is_refused_without_a_process(
    pole: RunFolder,  # noqa: F811
    query: str,
    sentence: str,
) -> None:
    with watching(pole, query) as session:
        message, _ = receive(session)
        assert (message["type"], message["fatal"]) == ("error", True)
        assert message["error"].startswith(sentence)
        assert closing_code(session) == 1000
    assert pids() == []


def test_a_run_without_checkpoints(tmp_path: Path) -> None:
    with watching(RunFolder(tmp_path)) as session:
        assert receive(session)[0]["error"].startswith("the run has no checkpoint yet")


def test_there_are_at_most_so_many_players(pole: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(playing, "MAX_PLAYERS", 1)
    with serving(pole) as address:
        with connect(address, proxy=None) as session, connect(address, proxy=None) as other:
            assert receive(other)[0]["error"].startswith("1 players run already")
            assert closing_code(other) == 1013
            first(session, "step")
        wait_for(lambda: not playing._players)
        with connect(address, proxy=None) as session:  # there is room again
            first(session, "ready")


def test_an_error_of_the_player_ends_the_connection(tmp_path: Path) -> None:
    with watching(train(tmp_path, "tests.probes:Walk")) as session:
        message, _ = receive(session)
        assert message["error"].endswith("start the dashboard with --trust")
        assert closing_code(session) == 1000
    assert pids() == []


def test_a_player_that_ends_without_a_word(tmp_path: Path) -> None:
    folder = train(tmp_path, "tests.probes:Crashing", env_config={"folder": str(tmp_path)})
    with watching(folder, trust=True) as session:
        first(session, "step")
        (tmp_path / "crash").touch()
        error = first(session, "error")
        assert error["fatal"] is True
        assert error["error"].startswith("the player has ended with exit code 7")
        assert closing_code(session) == 1000


def test_a_slow_browser_gets_few_pictures_and_all_that_waits_is_bounded(
    pole: RunFolder,  # noqa: F811
) -> None:
    """The browser takes nothing for a while. Of what waits meanwhile, only the last picture is sent."""

    async def slow() -> tuple[list[dict[str, Any]], int]:
        sent: list[dict[str, Any]] = []
        goes_on, leaves = asyncio.Event(), asyncio.Event()
        commands = [
            {"type": "websocket.connect"},
            {"type": "websocket.receive", "text": '{"command":"speed","value":60}'},
        ]

        async def to_server() -> dict[str, Any]:
            if commands:
                return commands.pop(0)
            await leaves.wait()
            return {"type": "websocket.disconnect", "code": 1001}

        async def to_browser(message: dict[str, Any]) -> None:
            sent.append(message)
            if "text" in message and json.loads(message["text"])["type"] == "step":
                await goes_on.wait()

        relays: list[playing._Relay] = []
        original = playing._Relay.__init__

        def remember(self: playing._Relay, *arguments: Any) -> None:
            original(self, *arguments)
            relays.append(self)

        websocket = WebSocket({"type": "websocket", "path": "/", "headers": []}, to_server, to_browser)
        playing._Relay.__init__ = remember  # type: ignore[method-assign]
        try:
            task = asyncio.create_task(playing.play(websocket, pole, None, 0))
            while not relays or len(relays[0]._outbox._waiting) < 20:
                assert not task.done()
                await asyncio.sleep(0.01)
        finally:
            playing._Relay.__init__ = original  # type: ignore[method-assign]
        waiting = list(relays[0]._outbox._waiting)
        pictures = sum(bool(picture) for _, picture in waiting)
        goes_on.set()
        while len(sent) < 25:
            await asyncio.sleep(0.01)
        leaves.set()
        await task
        return [json.loads(message["text"]) for message in sent if "text" in message], pictures

    messages, pictures = asyncio.run(slow())
    assert pictures <= 1
    steps = [message["step"] for message in messages if message["type"] == "step" and message["episode"] == 0]
    assert steps == list(range(len(steps)))  # numbers are not dropped
    assert pids() == []


def test_a_browser_that_vanishes_takes_its_player_with_it(pole: RunFolder) -> None:  # noqa: F811
    """What the environment has started ends, too: it is in the player's process group."""
    with serving(pole) as address, connect(address, proxy=None) as session:
        first(session, "step")
        (pid,) = pids()
        assert os.getpgid(pid) == pid
        session.socket.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: not psutil.pid_exists(pid))
        wait_for(lambda: not playing._players)


def test_a_server_that_stops_ends_its_players(pole: RunFolder) -> None:  # noqa: F811
    with ExitStack() as browser:
        with serving(pole) as address:
            first(browser.enter_context(connect(address, proxy=None)), "step")
            (pid,) = pids()
        assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("trust", [False, True])
def test_the_dashboard_plays_what_needs_trust_only_with_trust(tmp_path: Path, trust: bool) -> None:
    folder = train(tmp_path, "tests.probes:Walk")
    settings = DashboardSettings(results=tmp_path, port=0, trust=trust)
    with DashboardServer(settings) as server:
        run = quote(str(folder.path.relative_to(tmp_path)), safe="")
        address = f"{server.url.replace('http', 'ws')}/api/play?run={run}"
        with connect(address, proxy=None) as session:
            message, _ = receive(session)
            assert message["type"] == ("ready" if trust else "error")
        with pytest.raises(InvalidStatus), connect(address, proxy=None, origin=Origin("http://evil.example")):
            pass
    assert pids() == []


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("run={run}&seed=-3", "the seed must be an integer of at least 0, not '-3'"),
        ("run={run}&seed=x", "the seed must be an integer of at least 0, not 'x'"),
        ("run=gone/PPO_x", "there is no run 'gone/PPO_x'"),
        ("", "the request needs the parameter 'run' once"),
    ],
)
def test_a_browser_is_told_what_is_wrong_with_its_address(
    pole: RunFolder,  # noqa: F811
    query: str,
    sentence: str,
) -> None:
    """A connection that is denied would look like a lost one, and be tried again without end."""
    results = pole.path.parents[1]
    with DashboardServer(DashboardSettings(results=results, port=0)) as server:
        run = quote(str(pole.path.relative_to(results)), safe="")
        address = f"{server.url.replace('http', 'ws')}/api/play?{query.format(run=run)}"
        with connect(address, proxy=None) as session:
            message, _ = receive(session)
            assert (message["type"], message["fatal"]) == ("error", True)
            assert sentence in message["error"]
            assert closing_code(session) == 1000
    assert pids() == []


def test_the_server_does_not_import_torch() -> None:
    program = "import sys, outplay.dashboard.playing; print([n for n in ('torch', 'gymnasium') if n in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
