"""`outplay dashboard` and `outplay train --dashboard` as processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from outplay.dashboard.announcing import link_of
from tests.cli.common import Outcome, wait_for
from tests.cli.common import start as start_training
from tests.cli.conftest import cli as cli
from tests.dashboard.common import events, get, process, trained

SMALL = ["--config", "num_envs=4", "--config", "train_batch_size=80", "--num-workers", "0"]
PATIENCE_S = 100


def is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def client_of(link: str) -> httpx.Client:
    address = urlsplit(link)
    return httpx.Client(base_url=f"{address.scheme}://{address.netloc}", trust_env=False, timeout=PATIENCE_S)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """With a page open, and while the defaults of settings are read: no process, no port, no file stays."""
    results = tmp_path / "results"
    trained(results, iterations=1)
    with process(results, "--port", "0") as (running, link), client_of(link) as client:
        assert len(get(client, "/api/overview")["runs"]) == 1
        assert link_of(results) == link
        with events(client) as stream:
            assert stream.next()["runs"]
            children = psutil.Process(running.pid).children(recursive=True)
            os.killpg(running.pid, number)  # as Ctrl-C in a terminal does
            _, err = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == 0
        assert re.fullmatch(r"stopped; runs that were started from the page continue\n", err)
        assert not psutil.wait_procs(children, timeout=PATIENCE_S)[1]
        port = urlsplit(link).port
        assert port is not None
        assert is_free(port)
    assert not (results / ".dashboard").exists()
    assert link_of(results) is None


def test_the_printed_link_has_the_token(tmp_path: Path) -> None:
    with process(tmp_path, "--port", "0", OUTPLAY_TOKEN="a+b/c?") as (_, link), client_of(link) as client:
        assert link.endswith("/?token=a%2Bb%2Fc%3F")
        assert client.get("/api/overview").status_code == 401
        assert client.get(link).status_code == 303
        assert client.get("/api/overview").status_code == 200
        announced = tmp_path / ".dashboard" / "address.json"
        assert stat.S_IMODE(announced.stat().st_mode) == 0o600  # it has the token
    # It was killed: its file stays, and its lock tells.
    assert announced.exists()
    assert link_of(tmp_path) is None


def test_two_dashboards_of_one_folder(tmp_path: Path) -> None:
    with process(tmp_path, "--port", "0") as (_, link), process(tmp_path, "--port", "0") as (_, other):
        assert link_of(tmp_path) == link
        with client_of(other) as client:
            assert get(client, "/api/overview")["runs"] == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--port", "70000"], "port must be from 0 to 65535"),
        (["--port", "x"], "valid integer"),
        (["--token", "a b"], "token must be printable"),
        (["--token", ""], "token must be printable"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        (["--prot", "1"], "no option --prot"),
        (["--results-dir", "x" * 5000], "cannot be used"),
        (["--results-dir", __file__], "test_command.py is a file; give the folder"),
        (["extra"], "extra"),
    ],
)
def test_wrong_options_get_one_sentence(cli: Callable[..., Outcome], arguments: list[str], part: str) -> None:
    code, _, err = cli("dashboard", *arguments)
    assert code == 2
    assert part in " ".join(err.split())
    assert "Traceback" not in err


def test_a_port_that_is_taken_gets_one_sentence(cli: Callable[..., Outcome]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, _, err = cli("dashboard", "--port", str(taken.getsockname()[1]), "--no-open")
    assert code == 2
    assert re.fullmatch(r"outplay: the server cannot listen on 127.0.0.1, port \d+: .*\n", err)


# outplay train --dashboard


def link_in(running: subprocess.Popen[str]) -> tuple[str, str]:
    """The link that a training command prints, and its whole line."""
    assert running.stderr is not None
    for text in running.stderr:
        if found := re.search(r"dashboard: (http://\S+)", text):
            return found[1], text
    raise AssertionError("no link was printed")


def test_training_with_a_page_that_ends_with_it(tmp_path: Path) -> None:
    running = start_training(
        tmp_path, "--env", "CartPole-v1", *SMALL, "--stop", "training_iteration=1000000", "--dashboard", "--json"
    )
    try:
        link, text = link_in(running)
        assert "before" not in text
        with client_of(link) as client:
            (run,) = wait_for(lambda: get(client, "/api/overview")["runs"], PATIENCE_S)
            wait_for(lambda: get(client, "/api/overview")["runs"][0]["iteration"] > 2, PATIENCE_S)
            assert run["algorithm"] == "PPO"
            children = psutil.Process(running.pid).children(recursive=True)
            running.send_signal(signal.SIGINT)
            out, _ = running.communicate(timeout=PATIENCE_S)
        assert json.loads(out.splitlines()[0])["training_iteration"] == 1
        assert running.returncode == 0
        assert not psutil.wait_procs(children, timeout=PATIENCE_S)[1]
        port = urlsplit(link).port
        assert port is not None
        assert is_free(port)
        assert not (tmp_path / "results" / ".dashboard").exists()
    finally:
        running.kill()
        running.communicate()


def test_the_page_ends_also_if_training_is_killed(tmp_path: Path) -> None:
    running = start_training(
        tmp_path, "--env", "CartPole-v1", *SMALL, "--stop", "training_iteration=1000000", "--dashboard"
    )
    try:
        link_in(running)
        children = psutil.Process(running.pid).children(recursive=True)
        assert children
    finally:
        running.kill()
        running.communicate()
    assert not psutil.wait_procs(children, timeout=PATIENCE_S)[1]


@pytest.mark.slow
def test_training_uses_the_page_that_is_there(tmp_path: Path) -> None:
    results = tmp_path / "results"
    with process(results, "--port", "0") as (page, link):
        running = start_training(
            tmp_path, "--env", "CartPole-v1", *SMALL, "--stop", "training_iteration=2", "--dashboard"
        )
        found, text = link_in(running)
        assert found == link
        assert "before" in text
        running.communicate(timeout=PATIENCE_S)
        assert running.returncode == 0
        assert page.poll() is None  # it stays
        with client_of(link) as client:
            (run,) = get(client, "/api/overview")["runs"]
            assert run["state"] == "finished"


@pytest.mark.slow
def test_an_error_of_training_with_a_page_is_one_sentence(tmp_path: Path) -> None:
    running = start_training(tmp_path, "--env", "NoSuchEnv-v3", "--dashboard")
    _, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 2
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("outplay: ")
    assert link_of(tmp_path / "results") is None
    assert os.path.exists(tmp_path)
