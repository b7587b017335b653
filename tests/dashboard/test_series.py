"""Curves: buckets that keep minima and maxima, files that grow, are replaced, damaged or long."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from outplay.dashboard import series as series_module
from outplay.dashboard.defaults import Defaults
from outplay.dashboard.entries import Entry
from outplay.dashboard.series import SeriesStore
from outplay.dashboard.summary import Summary, columns_of
from outplay.runs.folder import RunFolder
from tests.cli.common import wait_for
from tests.dashboard.common import line, refusal, run_id, series, serving, trained

ALL = (-np.inf, np.inf)


def results_of(values: list[Any], first: int = 1) -> list[dict[str, Any]]:
    return [{"training_iteration": i, "episode_return_mean": value} for i, value in enumerate(values, first)]


def summary_of(values: list[Any], capacity: int, part: int) -> Summary:
    summary = Summary(capacity)
    for start in range(0, len(values), part):
        chunk = results_of(values[start : start + part], start + 1)
        summary.add(columns_of(chunk), range(start, start + len(chunk)))
    return summary


@pytest.mark.parametrize("part", [1, 7, 64, 1000])
def test_buckets_keep_minima_and_maxima(part: int) -> None:
    values = [float(np.sin(i / 30)) for i in range(1000)]
    values[123], values[877] = -50.0, 70.0
    summary = summary_of(values, capacity=32, part=part)
    assert summary.buckets <= 32
    assert summary.lines == 1000
    for points in (1, 5, 32, 100):
        curve = summary.curve("episode_return_mean", "training_iteration", points)
        assert len(curve.x) <= points
        assert (curve.low.min(), curve.high.max()) == (-50.0, 70.0)
        assert curve.total == 1000
        assert np.all(np.diff(curve.x) > 0)
        assert np.all(curve.low <= curve.mean)
        assert np.all(curve.mean <= curve.high)


def test_buckets_are_worked_out_by_hand() -> None:
    summary = summary_of([1.0, 3.0, None, 5.0, 10.0, 20.0, 7.0], capacity=4, part=3)
    assert summary.size == 2
    curve = summary.curve("episode_return_mean", "training_iteration", 10)
    assert curve.x.tolist() == [1.5, 3.5, 5.5, 7.0]
    assert curve.mean.tolist() == [2.0, 5.0, 15.0, 7.0]
    assert curve.low.tolist() == [1.0, 5.0, 10.0, 7.0]
    assert curve.high.tolist() == [3.0, 5.0, 20.0, 7.0]
    assert curve.total == 6
    inside = summary.curve("episode_return_mean", "training_iteration", 10, 5.0, 6.0)
    assert inside.x.tolist() == [3.5, 5.5, 7.0]  # with one bucket on each side
    assert summary.span("training_iteration", 5.0, 6.0) == (2, -1, 6)
    assert summary.curve("nothing", "training_iteration", 10).total == 0


def test_few_values_have_no_band() -> None:
    curve = summary_of([1.0, 2.0, 3.0], capacity=8, part=2).curve("episode_return_mean", "training_iteration", 5)
    assert curve.mean.tolist() == [1.0, 2.0, 3.0]
    assert curve.has_band is False


def test_metrics_that_come_and_go() -> None:
    results = results_of([1.0] * 40)
    for i in range(0, 40, 10):
        results[i]["evaluation"] = {"episode_return_mean": float(i)}
    results[5]["strange"] = "text"
    results[6] |= {"deep": {"a": {"b": {"c": {"d": 1}}}}, "list": [1], "huge": 10**400, "yes": True}
    summary = Summary(16)
    for start in range(0, 40, 8):
        summary.add(columns_of(results[start : start + 8]), range(start, start + 8))
    curve = summary.curve("evaluation/episode_return_mean", "training_iteration", 10)
    assert sorted(curve.high.tolist()) == [0.0, 10.0, 20.0, 30.0]
    assert curve.total == 4
    assert "list" not in summary.metrics
    assert summary.curve("strange", "training_iteration", 10).total == 0
    assert summary.curve("huge", "training_iteration", 10).total == 0


def test_a_file_with_countless_metrics_needs_bounded_memory() -> None:
    summary = Summary()
    for i in range(40):
        results = [{**results_of([1.0], i * 50 + j + 1)[0], f"m{i}-{j}": 1.0} for j in range(50)]
        summary.add(columns_of(results), range(50))
    assert len(summary.metrics) <= 512
    assert summary.nbytes < 40_000_000


# Files.


def entry_of(folder: Path) -> Entry:
    (folder / "config.yaml").write_text("it:\n  env: CartPole-v1\n  run: PPO\n  config:\n    seed: 0\n")
    return Entry("it/run", RunFolder(folder), None, Defaults())


def curve_of(store: SeriesStore, entry: Entry, points: int = 100, low: float = ALL[0], high: float = ALL[1]) -> Any:
    ((_, curve, is_exact),) = store.curves([entry], "episode_return_mean", "training_iteration", points, low, high)
    return curve, is_exact


def test_a_growing_and_a_replaced_file(tmp_path: Path) -> None:
    entry, file = entry_of(tmp_path), tmp_path / "metrics.jsonl"
    store = SeriesStore(10**8)
    assert curve_of(store, entry)[0].total == 0
    file.write_text(line(1, 1.0) + line(2, 2.0))
    assert curve_of(store, entry)[0].mean.tolist() == [1.0, 2.0]
    with file.open("a") as appended:
        appended.write(line(3, 3.0) + line(4, 4.0)[:20])  # the last line is being written
    curve, is_exact = curve_of(store, entry)
    assert (curve.mean.tolist(), is_exact) == ([1.0, 2.0, 3.0], True)
    other = tmp_path / "other"
    other.write_text(line(1, 9.0) + line(2, 8.0) + line(3, 7.0) + line(4, 6.0))
    other.replace(file)  # a resumed run writes its file again
    assert curve_of(store, entry)[0].mean.tolist() == [9.0, 8.0, 7.0, 6.0]
    file.write_text(line(1, 5.0))
    assert curve_of(store, entry)[0].mean.tolist() == [5.0]
    file.unlink()
    assert curve_of(store, entry)[0].total == 0
    store.stop()


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    entry, file = entry_of(tmp_path), tmp_path / "metrics.jsonl"
    damaged = [b"\n", b"nonsense\n", b"\xff\xfe\x00\n", b"[1]\n", b'{"training_iteration":"x"}\n', b"{}\n"]
    damaged += [b"[" * 100_000 + b"\n", b'{"training_iteration":1,"episode_return_mean":1e999}\n']
    damaged += [b'{"training_iteration":1,"episode_return_mean":"\\ud800"}\n']
    file.write_bytes(line(1, 1.0).encode() + b"".join(damaged) + line(9, None).encode() + line(10, 2.0).encode())
    store = SeriesStore(10**8)
    curve, is_exact = curve_of(store, entry)
    assert (curve.mean.tolist(), is_exact) == ([1.0, 2.0], True)
    store.stop()


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    entry, file = entry_of(tmp_path), tmp_path / "metrics.jsonl"
    store = SeriesStore(10**8)
    os.mkfifo(file)
    assert curve_of(store, entry)[0].total == 0
    assert entry.refresh() is True
    assert entry.run["spark"] == []
    file.unlink()
    file.mkdir()
    assert curve_of(store, entry)[0].total == 0
    file.rmdir()
    file.symlink_to("/dev/zero")
    assert curve_of(store, entry)[0].total == 0
    assert entry.refresh() is not None
    store.stop()


def long_file(path: Path, lines: int) -> np.ndarray:
    values = np.random.default_rng(0).normal(0, 1, lines)
    values[lines // 3] = 99.0
    with path.open("w") as file:
        file.writelines(line(i + 1, float(value), padding=["x" * 200]) for i, value in enumerate(values))
    return values


def test_a_long_file_is_sampled_first_and_then_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_module, "_AT_ONCE", 100_000)
    monkeypatch.setattr(series_module, "_PART", 50_000)
    monkeypatch.setattr(series_module, "_SAMPLES", 100)
    entry = entry_of(tmp_path)
    values = long_file(tmp_path / "metrics.jsonl", 20_000)
    store = SeriesStore(10**8)
    curve, is_exact = curve_of(store, entry, 200)
    assert is_exact is False
    assert 50 <= len(curve.x) <= 101
    assert (curve.x[0], curve.x[-1]) == (1.0, 20_000.0)  # always the first and the last line
    wait_for(lambda: curve_of(store, entry)[1])
    curve, _ = curve_of(store, entry)
    assert curve.total == 20_000
    assert curve.high.max() == 99.0
    assert curve.low.min() == values.min()
    assert float(np.average(curve.mean)) == pytest.approx(values.mean(), abs=0.05)
    detail, _ = curve_of(store, entry, 400, low=6600, high=6700)
    assert not detail.has_band  # single lines again
    inside = (detail.x >= 6600) & (detail.x <= 6700)
    assert detail.x[inside].tolist() == list(range(6600, 6701))
    assert detail.mean[inside] == pytest.approx(values[6599:6700])
    assert detail.total == 20_000
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(line(20_001, 123.0))
    curve, is_exact = curve_of(store, entry)  # what is new is read at once
    assert is_exact
    assert curve.high.max() == 123.0
    store.stop()


def test_a_long_file_that_is_replaced_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_module, "_AT_ONCE", 10_000)
    monkeypatch.setattr(series_module, "_PART", 10_000)
    entry = entry_of(tmp_path)
    long_file(tmp_path / "metrics.jsonl", 5_000)
    store = SeriesStore(10**8)
    assert curve_of(store, entry)[1] is False
    (tmp_path / "metrics.jsonl").write_text(line(1, 7.0))
    wait_for(lambda: curve_of(store, entry)[1])
    assert curve_of(store, entry)[0].mean.tolist() == [7.0]
    store.stop()


def test_the_memory_is_bounded(tmp_path: Path) -> None:
    store = SeriesStore(memory_bytes=200_000)
    for i in range(20):
        folder = tmp_path / str(i)
        folder.mkdir()
        entry = entry_of(folder)
        entry.id = f"it/{i}"
        (folder / "metrics.jsonl").write_text("".join(line(j, float(j)) for j in range(1, 300)))
        assert curve_of(store, entry)[0].total == 299
        assert store.nbytes <= 400_000  # the last one stays in any case
    store.stop()


# Over HTTP.


@pytest.fixture(scope="module")
def client_and_run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    results = tmp_path_factory.mktemp("results")
    run = trained(results, iterations=6)
    with serving(results) as client:
        yield client, run


def test_series_of_a_real_run(client_and_run: Any) -> None:
    client, run = client_and_run
    results = run.folder.metrics().results
    for x in ("timesteps_total", "time_total_s", "episodes_total", "training_iteration"):
        found = series(client, run_id(run), x=x)
        assert found["x"] == [result[x] for result in results]
        assert found["y"] == [result["episode_return_mean"] for result in results]
        assert (found["low"], found["high"], found["exact"], found["total"]) == (None, None, True, 6)
    found = series(client, run_id(run), "learner/entropy", x="training_iteration", points=2)
    values = [result["learner"]["entropy"] for result in results]
    assert len(found["x"]) == 2
    assert (min(found["low"]), max(found["high"])) == (min(values), max(values))
    assert found["y"] == pytest.approx([sum(values[:3]) / 3, sum(values[3:]) / 3])
    found = series(client, run_id(run), x="training_iteration", from_=3, to=4)
    assert found["x"] == [2, 3, 4, 5]
    assert series(client, run_id(run), "no/such/metric")["x"] == []


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ({}, "metric"),
        ({"metric": "a"}, "run"),
        ({"metric": "a", "run": "x", "x": "timesteps"}, "x must be one of"),
        ({"metric": "a", "run": "x", "points": "0"}, "points must be"),
        ({"metric": "a", "run": "x", "points": "999999999999"}, "points must be"),
        ({"metric": "a", "run": "x", "points": "000000001" + "0" * 5000}, "points must be"),
        ({"metric": "a", "run": "x", "points": "½"}, "points must be"),
        ({"metric": "a", "run": "x", "from": "nan"}, "from must be a number"),
        ({"metric": "a", "run": "x", "to": "b"}, "to must be a number"),
    ],
)
def test_wrong_parameters_get_one_sentence(client_and_run: Any, query: dict[str, str], part: str) -> None:
    client: httpx.Client = client_and_run[0]
    assert part in refusal(client.get("/api/series", params=query), 422)


def test_a_request_does_not_wait_for_the_thread_that_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is held up in the middle of a file: a curve is answered from samples nevertheless."""
    monkeypatch.setattr(series_module, "_AT_ONCE", 10_000)
    entry = entry_of(tmp_path)
    long_file(tmp_path / "metrics.jsonl", 3_000)
    store = SeriesStore(10**8)
    read, goes_on = entry.folder.part_of_metrics, []

    def held_up(*arguments: Any) -> Any:
        while not goes_on:
            time.sleep(0.01)
        return read(*arguments)

    monkeypatch.setattr(entry.folder, "part_of_metrics", held_up)
    for _ in range(3):
        curve, is_exact = curve_of(store, entry)
        assert is_exact is False
        assert len(curve.x) > 50
    goes_on.append(True)
    wait_for(lambda: curve_of(store, entry)[1])
    store.stop()
