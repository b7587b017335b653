"""Parts and samples of a long metrics.jsonl, and config.yaml of many runs."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
import yaml

from outplay.errors import ConfigError, RunError
from outplay.parsing import read_yaml
from outplay.runs import recorded
from outplay.runs.folder import RunFolder
from outplay.runs.history import Position
from tests.runs.common import make


def line(iteration: int, length: int = 200) -> bytes:
    result = {"training_iteration": iteration, "episode_return_mean": iteration * 1.0, "padding": ["x" * length]}
    return json.dumps(result).encode() + b"\n"


def iterations(results: list[dict[str, int]]) -> list[int]:
    return [result["training_iteration"] for result in results]


@pytest.mark.parametrize("most_bytes", [300, 1000, 10_000, 10**6])
def test_parts_are_all_results_in_their_order(tmp_path: Path, most_bytes: int) -> None:
    lines = [line(i, i % 7 * 10) for i in range(1, 101)]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines) + b'{"training_iter')
    folder, position, found, offsets = RunFolder(tmp_path), Position(), [], []
    while True:
        part = folder.part_of_metrics(position, most_bytes)
        found += iterations(part.results)
        offsets += part.offsets
        position = part.end
        if part.is_last:
            break
    assert found == list(range(1, 101))
    assert offsets == [sum(map(len, lines[:i])) for i in range(100)]
    assert position.lines == 100
    assert folder.metrics(since=position).results == []  # the same positions as of `metrics`
    inside = folder.lines_of_metrics(offsets[10], offsets[20])
    assert iterations(inside.results) == list(range(11, 21))
    assert inside.offsets == offsets[10:20]


def test_a_line_longer_than_a_part_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(line(1) + line(2, 5000) + line(3))
    folder, position, found = RunFolder(tmp_path), Position(), []
    for _ in range(20):
        part = folder.part_of_metrics(position, 1000)
        found += iterations(part.results)
        position = part.end
    assert found == [1, 3]


def test_a_sample_has_the_first_and_the_last_result(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.sampled_metrics(10).results == []
    for number in (1, 2, 50, 2000):
        (tmp_path / "metrics.jsonl").write_bytes(b"".join(line(i, 900) for i in range(1, number + 1)) + b"{unfinished")
        part = folder.sampled_metrics(40)
        found = iterations(part.results)
        assert (found[0], found[-1]) == (1, number)
        assert found == sorted(set(found))
        assert part.is_last == (number <= 50)
        assert len(found) == number if part.is_last else 35 <= len(found) <= 41
        gaps = [after - before for before, after in itertools.pairwise(found)]
        assert max(gaps, default=0) <= max(1, number / 40 + 2)
    (tmp_path / "metrics.jsonl").write_bytes(b"x" * 500_000)
    assert folder.sampled_metrics(40).results == []
    assert iterations(folder.sampled_metrics(1).results) == []


def test_the_last_results(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.last_metrics(5, 10_000) == []
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(line(i) for i in range(1, 100)) + b"{unfinished")
    assert iterations(folder.last_metrics(5, 10_000)) == [95, 96, 97, 98, 99]
    assert iterations(folder.last_metrics(5, 600)) == [98, 99]
    assert iterations(folder.last_metrics(500, 10**6)) == list(range(1, 100))


def test_the_last_result_with_a_group_of_metrics(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.last_metrics_with("evaluation", 10_000) is None
    lines = [line(i) for i in range(1, 10)]
    for iteration, text in ((2, '{"value": 1}'), (5, '{"value": 2}'), (7, '"no group"')):
        lines[iteration - 1] = lines[iteration - 1].replace(b"{", b'{"evaluation": %b, ' % text.encode(), 1)
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(lines))
    found = folder.last_metrics_with("evaluation", 10_000)
    assert found is not None
    assert (found["training_iteration"], found["evaluation"]) == (5, {"value": 2})
    assert folder.last_metrics_with("evaluation", 600) is None


def test_results_of_iterations_are_found_by_bisection(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.results_of([1]) == {}
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(line(i, i % 50 * 20) for i in range(1, 1000) if i % 7))
    found = folder.results_of(range(1100))
    assert set(found) == {i for i in range(1, 1000) if i % 7}
    assert all(result["training_iteration"] == iteration for iteration, result in found.items())


def test_what_is_no_file_raises_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    folder = RunFolder(tmp_path)
    for read in (
        lambda: folder.part_of_metrics(),
        lambda: folder.sampled_metrics(4),
        lambda: folder.last_metrics(4, 100),
        lambda: folder.results_of([1]),
    ):
        with pytest.raises(RunError, match="cannot be read"):
            read()


# config.yaml


def test_recorded_settings_are_those_of_the_file(tmp_path: Path) -> None:
    config = {"env_config": {}, "model": {"fcnet_hiddens": [16, 16]}, "info_metrics": ["a", "b"]}
    run = make(tmp_path, description="two\nlines: and 'quotes' " + "long " * 60, config=config)
    run.close()
    name, body = run.folder.recorded()
    assert {name: body} == read_yaml(run.folder.path / "config.yaml")
    assert recorded._by_setting((run.folder.path / "config.yaml").read_text()) == {name: body}
    body["config"]["model"]["fcnet_hiddens"].append(1)  # callers may change what they get
    assert run.folder.recorded()[1]["config"]["model"]["fcnet_hiddens"] == [16, 16]


@pytest.mark.parametrize(
    "text",
    [
        "it: {env: a, config: {lr: 1, b: [1, 2]}}\n",
        "it:\n  env: a\n  config: &x\n    lr: 1\n  other: *x\n",
        "# a comment\nit:\n  env: a\n\n  config:\n    # another\n    lr: 1\n    text: |\n      a\n       b\n",
        "it:\n    env: a\n    config:\n        lr: 1\n",
        "'it':\n  env: a\n  config:\n    lr: 1\n    list:\n    - 1\n    - b: 2\n",
        "---\nit:\n  env: a\n  config:\n    lr: 1\n",
    ],
)
def test_files_of_other_forms_are_read_as_well(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    name, body = RunFolder(tmp_path).recorded()
    assert {name: body} == yaml.safe_load(text)


@pytest.mark.parametrize(
    "text",
    ["", "a", "a: 1\n", "a: {config: 1}\n", "a: {config: {}}\nb: {config: {}}\n", "a:\n  config:\n    b: 1\n    b: 2\n",
     "a:\n  config:\n    b: [1\n", "a:\n  config:\n    b: !!python/object:os.system x\n", "\0", "a:\n\tb: 1\n"],
)  # fmt: skip
def test_a_damaged_config_raises_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        RunFolder(tmp_path).recorded()
    assert "\n" not in str(caught.value)


def test_a_config_that_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        RunFolder(tmp_path).recorded()
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(ConfigError, match="not a file"):
        RunFolder(tmp_path).recorded()
    (tmp_path / "config.yaml").unlink()
    (tmp_path / "config.yaml").write_bytes(b"a: " + b"x" * 2_000_000)
    with pytest.raises(ConfigError, match="larger than"):
        RunFolder(tmp_path).recorded()
