"""A server over time: batches, new checkpoints, the end; and as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from outplay.errors import ConfigError
from outplay.runs.run import Run
from outplay.serve import PolicyServer, PolicySource, ServeSettings, load_policy
from outplay.serve.batching import Batcher, OverloadedError
from outplay.serve.metrics import ServerMetrics
from tests.cli.common import wait_for
from tests.runs.common import make
from tests.serve.common import saved_cartpole, serving

FINE = [0.1, 0.0, 0.02, 0.0]


def metric(client: httpx.Client, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_requests_at_the_same_time_share_a_batch(tmp_path: Path) -> None:
    trainer, saved = saved_cartpole(tmp_path)
    rng = np.random.default_rng(0)
    observations = rng.normal(0, 0.1, (8, 4)).astype(np.float32)
    with serving(saved, max_batch_size=8, max_wait_ms=100_000) as client, ThreadPoolExecutor(8) as pool:
        bodies = [{"observation": observation.tolist()} for observation in observations]
        answers = list(pool.map(lambda body: client.post("/act", json=body).json(), bodies))
        assert metric(client, "outplay_batch_observations_count") == 1  # the eighth request completes the batch
        assert metric(client, "outplay_batch_observations_sum") == 8
    expected = [trainer.compute_single_action(observation, explore=False) for observation in observations]
    assert [answer["action"] for answer in answers] == expected


def test_a_batch_is_not_larger_than_allowed_and_too_much_is_refused(tmp_path: Path) -> None:
    served = load_policy(saved_cartpole(tmp_path)[1])
    rows = (np.zeros((3, 4), np.float32),)

    async def run() -> tuple[int, float]:
        batcher = Batcher(served, metrics := ServerMetrics(), max_rows=4)
        waiting = [asyncio.ensure_future(batcher.act(rows)) for _ in range(200)]
        await asyncio.sleep(0)
        batcher.start()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        await batcher.stop()
        refused = sum(isinstance(each, OverloadedError) for each in found)
        largest = next(line for line in metrics.batch_rows.samples() if 'le="4"' in line).split()[-1]
        assert float(largest) == 200 - refused  # one request of three rows each
        return refused, len(found)

    refused, number = asyncio.run(run())
    assert 0 < refused < number


def test_exploring_samples_actions(tmp_path: Path) -> None:
    saved = saved_cartpole(tmp_path)[1]
    body = {"observations": [[0.0, 0.0, 0.0, 0.0]] * 64}
    with serving(saved) as client:
        assert len(set(client.post("/act", json=body).json()["actions"])) == 1
    with serving(saved, explore=True) as client:
        assert len(set(client.post("/act", json=body).json()["actions"])) == 2


def test_bounds_need_not_be_checked(tmp_path: Path) -> None:
    with serving(saved_cartpole(tmp_path)[1], check_bounds=False) as client:
        assert client.post("/act", json={"observation": [9.0, 0, 0, 0]}).status_code == 200


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = make(tmp_path, checkpoint_freq=1, stop={"training_iteration": 5}, config={"model": {"use_lstm": True}})
    run.step()
    run.save()
    yield run
    run.pause()


def test_a_new_checkpoint_is_served_without_dropping_a_request(run: Run) -> None:
    """Clients ask all the time, among them a session; every answer is there, and each is of one of the checkpoints."""
    trainer = run.algorithm
    with serving(run.folder.path, reload_interval_s=0.02) as client:
        answers: list[tuple[int, int]] = []
        done = threading.Event()

        def ask(with_session: bool) -> None:
            body: dict[str, Any] = {"observation": FINE}
            if with_session:
                body["session"] = client.post("/sessions").json()["session"]
            while not done.is_set():
                response = client.post("/act", json=body)
                answers.append((response.status_code, response.json().get("iteration")))

        threads = [threading.Thread(target=ask, args=(with_session,)) for with_session in (True, False, False)]
        for thread in threads:
            thread.start()
        try:
            for iteration in (2, 3):
                run.step()
                run.save()
                wait_for(lambda: client.get("/info").json()["iteration"] == iteration)  # noqa: B023
            wait_for(lambda: answers and answers[-1][1] == 3)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert {status for status, _ in answers} == {200}
        assert {iteration for _, iteration in answers} >= {1, 3}
        assert metric(client, "outplay_reloads_total") == 2
        assert client.post("/act", json={"observation": FINE}).json()["action"] == trainer.compute_single_action(
            np.array(FINE, np.float32), explore=False
        )


def test_a_damaged_checkpoint_does_not_stop_the_server(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with serving(run.folder.path, reload_interval_s=0.02) as client:
        broken = run.folder.checkpoints_path / "checkpoint_000009"
        elsewhere = run.folder.path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "manifest.json").write_text("{}")
        elsewhere.rename(broken)
        wait_for(lambda: metric(client, "outplay_reload_failures_total") == 1)
        assert client.post("/act", json={"observation": FINE}).json()["iteration"] == 1
        broken.rename(elsewhere)
        run.step()
        run.save()
        wait_for(lambda: client.get("/info").json()["iteration"] == 2)
    assert sum("has no state.json" in message for message in caplog.messages) == 1  # not at each look


def test_a_checkpoint_is_served_as_it_is(run: Run) -> None:
    assert PolicySource.find(run.folder.checkpoints()[-1]).run is None
    assert PolicySource.find(run.folder.checkpoints()[-1] / "weights.safetensors").run is None
    source = PolicySource.find(run.folder.path)
    assert source.run is not None
    assert source.newest() is not None
    assert source.newest() is None


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    saved = saved_cartpole(tmp_path)[1]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1, port {port}: Address already in use"):
            PolicyServer(PolicySource.find(saved), ServeSettings(port=port))


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    running = subprocess.Popen(
        [sys.executable, "-m", "outplay", "serve", *arguments, "--port", "0"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environment},
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert running.stderr is not None
        line = running.stderr.readline()
        found = re.search(r"at (http://\S+);", line)
        assert found is not None, line + running.stderr.read()
        with httpx.Client(base_url=found[1], trust_env=False, timeout=60) as client:
            yield running, client
    finally:
        running.kill()
        running.wait()
        for stream in (running.stdout, running.stderr):
            if stream is not None:
                stream.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_lets_requests_under_way_be_answered(number: signal.Signals, tmp_path: Path) -> None:
    saved = saved_cartpole(tmp_path)[1]
    with process(str(saved), "--max-wait-ms", "100000") as (running, client), ThreadPoolExecutor(1) as pool:
        with connect(str(client.base_url).replace("http", "ws", 1) + "/ws") as socket:
            socket.send(json.dumps({"observation": FINE}))
            waiting = pool.submit(client.post, "/act", json={"observation": FINE})
            with httpx.Client(base_url=client.base_url, trust_env=False) as other:
                wait_for(lambda: metric(other, "outplay_waiting_observations") == 2)
            running.send_signal(number)
            assert json.loads(socket.recv())["action"] in (0, 1)
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
            assert waiting.result().status_code == 200
        out, err = running.communicate(timeout=60)
        assert (running.returncode, out) == (0, "")
        assert err.splitlines()[-1] == "stopped: all requests were answered"
        assert "Traceback" not in err


def test_a_request_that_ends_after_the_stop_is_answered(tmp_path: Path) -> None:
    """The batcher waits for nothing when the server stops; the request arrives completely only then."""
    body = json.dumps({"observation": FINE}).encode()
    head = b"POST /act HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    settings = ServeSettings(port=0, stop_timeout_s=20)
    with PolicyServer(PolicySource.find(saved_cartpole(tmp_path)[1]), settings) as server:
        port = int(server.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client, httpx.Client(base_url=server.url) as other:
            client.sendall(head + body[:5])
            assert other.get("/health").status_code == 200  # so the server has read the first part
            server.stop()
            wait_for(lambda: is_stopping(other))
            client.sendall(body[5:])
            answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200")


def is_stopping(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 503
    except httpx.TransportError:  # it has closed this connection already, and takes no new ones
        return True


@pytest.mark.slow
def test_the_token_comes_from_the_environment_and_is_not_printed(tmp_path: Path) -> None:
    saved = saved_cartpole(tmp_path)[1]
    with process(str(saved), "--host", "0.0.0.0", OUTPLAY_TOKEN="s3cret-t0ken") as (running, client):
        address = str(client.base_url).replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{address}/info", trust_env=False).status_code == 401
        right = {"authorization": "Bearer s3cret-t0ken"}
        assert httpx.get(f"{address}/info", headers=right, trust_env=False).status_code == 200
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=60)
        assert "s3cret" not in out + err


def test_mistakes_at_the_command_line(cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    saved = saved_cartpole(tmp_path)[1]
    for arguments, words in (
        (["--host", "0.0.0.0"], "set a token with OUTPLAY_TOKEN or --token"),
        (["--port", "-1"], "port must be from 0 to 65535"),
        (["--max-batch-size", "0"], "max_batch_size must be at least 1"),
        (["--env", "Acrobot-v1"], "CartPole-v1"),
    ):
        code, out, err = cli("serve", str(saved), *arguments)
        assert (code, out) == (2, "")
        assert words in err
        assert len(err.splitlines()) == 1
    code, _, err = cli("serve", "nothing-here")
    assert code == 2
    assert "there is no run" in err


def test_a_report_of_a_bug_has_no_token() -> None:
    from outplay.cli import _without_token

    assert _without_token(["outplay", "serve", "x", "--token", "s3", "--token=s3"]) == [
        *("outplay", "serve", "x", "--token"),
        *("…", "--token=…"),
    ]


def test_a_session_keeps_its_state_when_weights_are_reloaded(tmp_path: Path) -> None:
    run = make(tmp_path, env="Pendulum-v1", config={"model": {"use_lstm": True, "lstm_cell_size": 8}, "lr": 0.03})
    trainer = run.algorithm
    run.step()
    run.save()
    observations = np.random.default_rng(0).uniform(-1, 1, (4, 3)).astype(np.float32)
    with serving(run.folder.path, reload_interval_s=0.02) as client:
        session = client.post("/sessions").json()["session"]
        state = trainer.get_policy().initial_state(1)
        for step, observation in enumerate(observations):
            if step == 3:
                old, _, _ = trainer.compute_single_action(observation, state, explore=False)
                run.step()
                run.save()
                wait_for(lambda: client.get("/info").json()["iteration"] == 2)
            expected, state, _ = trainer.compute_single_action(observation, state, explore=False)
            body = {"observation": observation.tolist(), "session": session}
            assert client.post("/act", json=body).json()["action"] == pytest.approx(expected.tolist(), abs=1e-5)
        fresh = trainer.compute_single_action(observation, explore=False)
        assert abs(expected - fresh).max() > 1e-4, "the state makes no difference: this test could not fail"
        assert abs(expected - old).max() > 1e-4, "the weights make no difference: this test could not fail"
    run.pause()
