"""Experiment files, settings of the command line, metrics and status files: the project's own error, or success."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from outplay.algorithms import find_algorithm
from outplay.cli import main
from outplay.config import AlgorithmConfig
from outplay.errors import OutplayError
from outplay.groups import ModelConfig, OptimizerConfig
from outplay.registry import algorithms
from outplay.runs.experiments import experiment, load_file
from outplay.runs.loading import make_algorithm
from outplay.runs.run import Run
from tests.fuzz.mutations import FUZZ, ODD, changed_bytes, changed_tree

EXPERIMENT = {
    "poles": {
        "env": "CartPole-v1",
        "run": "PPO",
        "stop": {"training_iteration": 2, "episode_return_mean": 100},
        "checkpoint_freq": 1,
        "loggers": ["csv"],
        "config": {
            "num_envs": 4, "num_workers": 0, "train_batch_size": 24, "lr_schedule": [[0, 1e-3], [100, 1e-4]],
            "env_config": {"sutton_barto_reward": True}, "model": {"fcnet_hiddens": [4]},
            "optimizer": {"betas": [0.9, 0.99]},
        },
    }
}  # fmt: skip
# Pieces of YAML that mean something: anchors, aliases, tags, merges, odd scalars, indentation.
TOKENS = [
    "a", "b", "env: CartPole-v1", "run: PPO", "stop:", "config:", "yes", "no", "~", "null", "1e-3", "0x1F", "1:30",
    ".nan", "2024-13-45", "2024-01-01", "&a ", "*a", "&a [*a]", "<<: *a", "<<: ", "!!int x", "!!float x", "!!set {a}",
    "!!omap ", "!!binary x", "!!timestamp x", "!!python/name:os.system", "!x ", "%YAML 1.1", "---", "...", "- ", ": ",
    "? ", "{", "}", "[", "]", ",", "'", '"', "|", ">", "#", "\t", "\n", "\n  ", "\n    ", '"\\0"', '"\\ud800"',
    '"\\UFFFFFFFF"', "\x07", "9" * 5000, "0x" + "f" * 5000, "[" * 100, "{a: " * 100, "é", "\ufeff",
]  # fmt: skip
yaml_text = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=20).map("".join)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def run_folder(folder: Path) -> Path:
    body = {**EXPERIMENT["poles"], "name": "poles", "loggers": []}
    run = Run.create(experiment(body, "fuzz"), folder / "results")
    run.train()
    return run.folder.path


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    with warnings.catch_warnings(), contextlib.suppress(OutplayError):
        warnings.simplefilter("ignore")
        yield


def run_command(*arguments: str) -> None:
    """A command ends well, or with one sentence and exit code 2."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(sys, "argv", ["outplay", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code in (0, 2)


def load(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    with own_errors():
        for one in load_file(path):
            experiment(one.model_dump(), "again")


def make(path: Path, tree: Any) -> None:
    path.write_bytes(json.dumps(tree).encode())  # JSON is YAML
    with own_errors():
        for one in load_file(path):
            make_algorithm(one).stop()


def settings_of(config: type[AlgorithmConfig]) -> list[str]:
    inner = [f"model.{name}" for name in ModelConfig.model_fields]
    inner += [f"optimizer.{name}" for name in OptimizerConfig.model_fields]
    return sorted({*config.model_fields, *inner, "exploration_config.type", "a.b.c", "." * 500})


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    algorithm = draw(st.sampled_from(sorted(algorithms.shipped)))
    arguments = ["train", "--env=CartPole-v1", f"--run={algorithm}", "--dry-run"]
    for _ in range(draw(st.integers(1, 2))):
        key = draw(st.sampled_from(settings_of(find_algorithm(algorithm).Config)))
        value = draw(st.sampled_from(ODD) | yaml_text)
        text = f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        arguments.append(f"--config={text}".replace("\0", ""))  # a command line cannot hold it
    return arguments


def read(folder: Path, data: st.DataObject) -> None:
    """The run is listed, resumed and ended with a changed file."""
    changed = folder / data.draw(st.sampled_from(("metrics.jsonl", "status.json")))
    original = changed.read_bytes()
    lines = original.splitlines()
    if data.draw(st.booleans()):
        changed.write_bytes(data.draw(changed_bytes(original)))
    else:
        at = data.draw(st.integers(0, len(lines) - 1))
        tree = data.draw(changed_tree({"": json.loads(lines[at])}))
        lines[at] = json.dumps(next(iter(tree.values()), None)).encode()
        changed.write_bytes(b"\n".join(lines) + b"\n")
    try:
        run_command("runs", "--results-dir", str(folder.parent.parent))
        with own_errors():
            run = Run.resume(folder)
            with run:
                _ = run.is_finished
                run.request_stop("enough")
                run.train()
    finally:
        changed.write_bytes(original)


@settings(FUZZ, max_examples=200)
@given(text=yaml_text)
def test_yaml_of_odd_pieces(folder: Path, text: str) -> None:
    load(folder / "pieces.yml", text.encode(errors="replace"))


@settings(FUZZ, max_examples=200)
@given(text=changed_bytes(yaml.safe_dump(EXPERIMENT).encode()))
def test_yaml_with_changed_bytes(folder: Path, text: bytes) -> None:
    load(folder / "bytes.yml", text)


@settings(FUZZ, max_examples=10)
@given(tree=changed_tree(EXPERIMENT))
def test_an_experiment_with_odd_values(folder: Path, tree: Any) -> None:
    """As far as the algorithm, which knows its settings."""
    make(folder / "odd.yml", tree)


@settings(FUZZ, max_examples=100)
@given(arguments=commands())
def test_config_values(arguments: list[str]) -> None:
    run_command(*arguments)


@settings(FUZZ, max_examples=30)
@given(data=st.data())
def test_files_of_a_run(run_folder: Path, data: st.DataObject) -> None:
    """metrics.jsonl and status.json."""
    read(run_folder, data)


@pytest.mark.slow
@pytest.mark.timeout(1800)
class TestThousands:
    @settings(FUZZ, max_examples=5_000)
    @given(text=yaml_text)
    def test_of_odd_pieces(self, folder: Path, text: str) -> None:
        load(folder / "pieces.yml", text.encode(errors="replace"))

    @settings(FUZZ, max_examples=3_000)
    @given(text=changed_bytes(yaml.safe_dump(EXPERIMENT).encode()))
    def test_of_changed_bytes(self, folder: Path, text: bytes) -> None:
        load(folder / "bytes.yml", text)

    @settings(FUZZ, max_examples=1_000)
    @given(tree=changed_tree(EXPERIMENT))
    def test_of_odd_values(self, folder: Path, tree: Any) -> None:
        make(folder / "odd.yml", tree)

    @settings(FUZZ, max_examples=2_000)
    @given(arguments=commands())
    def test_of_config_values(self, arguments: list[str]) -> None:
        run_command(*arguments)

    @settings(FUZZ, max_examples=300)
    @given(data=st.data())
    def test_of_files_of_a_run(self, run_folder: Path, data: st.DataObject) -> None:
        read(run_folder, data)
