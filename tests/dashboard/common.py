"""What tests of the dashboard share: real runs, a server in a thread, and one in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from outplay.dashboard import DashboardServer, DashboardSettings
from outplay.runs.run import Run
from tests.runs.common import make

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0


def trained(results: Path, iterations: int = 4, **body: Any) -> Run:
    """A run that has been trained, with a checkpoint of each iteration."""
    config = {"train_batch_size": 200, **body.pop("config", {})}  # each iteration has episodes that end
    run = make(results, checkpoint_freq=1, config=config, **{"stop": {"training_iteration": iterations}, **body})
    run.train()
    return run


def run_id(run: Run) -> str:
    return "/".join(run.folder.path.parts[-2:])


@contextmanager
def serving(results: Path, **settings: Any) -> Iterator[httpx.Client]:
    """A client of a dashboard that runs in a thread."""
    with (
        DashboardServer(DashboardSettings(results=results, port=0, **settings)) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=PATIENCE_S) as client,
    ):
        yield client


@contextmanager
def process(results: Path, *arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`outplay dashboard` in a process of its own, and the link that it has printed."""
    command = [sys.executable, "-m", "outplay", "dashboard", "--results-dir", str(results), "--no-open", *arguments]
    running = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert running.stderr is not None
        found = re.search(r"http://\S+", running.stderr.readline())
        assert found is not None
        yield running, found[0]
    finally:
        running.kill()
        running.communicate()


def get(client: httpx.Client, path: str, *pairs: tuple[str, Any]) -> Any:
    """The JSON of an answer that must be fine."""
    answer = client.get(path, params=[(name, str(value)) for name, value in pairs])
    assert answer.status_code == 200, answer.text
    return answer.json()


def series(client: httpx.Client, run: str, metric: str = "episode_return_mean", **params: Any) -> dict[str, Any]:
    pairs = [("metric", metric), ("run", run), *((name.rstrip("_"), value) for name, value in params.items())]
    (found,) = get(client, "/api/series", *pairs)["series"]
    return dict(found)


def refusal(answer: httpx.Response, status: int) -> str:
    """The sentence of an answer that must be an error."""
    assert answer.status_code == status, answer.text
    found = answer.json()
    assert list(found) == ["error"]
    sentence = found["error"]
    assert "Traceback" not in sentence
    assert "\n" not in sentence
    return str(sentence)


def post(client: httpx.Client, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return client.post(path, json=body, headers=headers)


def line(iteration: int, value: float | None, **more: Any) -> str:
    """A line of metrics.jsonl, as short as possible."""
    result = {
        "training_iteration": iteration,
        "timesteps_total": iteration * 100,
        "time_total_s": iteration * 0.5,
        "episode_return_mean": value,
        **more,
    }
    return json.dumps(result) + "\n"


class Stream:
    """Server-sent events of /api/events."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def next(self) -> dict[str, Any]:
        """The data of the next event."""
        for text in self._lines:
            if text.startswith("data: "):
                return dict(json.loads(text.removeprefix("data: ")))
        raise AssertionError("the stream has ended")


@contextmanager
def events(client: httpx.Client, since: str = "") -> Iterator[Stream]:
    with client.stream("GET", "/api/events", params={"since": since}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Stream(answer.iter_lines())
