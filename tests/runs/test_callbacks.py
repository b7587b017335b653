"""Callbacks: called in order, by object or import path; their metrics are in every sink; what they raise is told."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outplay
from outplay import Callback, CallbackError, CheckpointError, ConfigError
from outplay.runs.callbacks import Episode
from outplay.runs.run import Run
from tests import probes
from tests.cli.common import SMALL, exit_code
from tests.runs.common import CONFIG, lines, make, weights

MODULE = """
from pathlib import Path
import outplay

Path(__file__).with_suffix(".imported").touch()


class Counter(outplay.Callback):
    def on_train_start(self, run):
        self.calls = 0

    def on_result(self, run, result):
        self.calls += 1
        result["calls"] = self.calls


class Second(outplay.Callback):
    pass


class Needy(outplay.Callback):
    def __init__(self, argument):
        pass


class Plain:
    pass
"""


class Log(Callback):
    """What was called, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_train_start(self, run: Run) -> None:
        self.calls.append(("start", run.algorithm.iteration))

    def on_episode_end(self, run: Run, episode: Episode) -> None:
        self.calls.append(("episode", episode.episode_return, episode.length))

    def on_result(self, run: Run, result: dict[str, Any]) -> None:
        self.calls.append(("result", result["training_iteration"]))

    def on_evaluation(self, run: Run, evaluation: dict[str, Any]) -> None:
        self.calls.append(("evaluation", evaluation["episodes"]))

    def on_checkpoint(self, run: Run, path: Path) -> None:
        assert (path / "manifest.json").exists()
        self.calls.append(("checkpoint", path.name))

    def on_worker_replaced(self, run: Run, worker: int) -> None:
        self.calls.append(("replaced", worker))

    def on_train_end(self, run: Run, reason: str) -> None:
        self.calls.append(("end", reason))

    def of(self, *kinds: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] in kinds]


def with_callbacks(results: Path, callbacks: list[Any], **body: Any) -> Run:
    config = {**CONFIG, **body.pop("config", {})}
    data = {"name": "it", "env": "CartPole-v1", "stop": {"training_iteration": 4}, **body, "config": config}
    return Run.create(data, results, callbacks=callbacks)


def test_what_is_called_and_when(tmp_path: Path) -> None:
    log = Log()
    config = {"evaluation_interval": 2, "evaluation_duration": 3, "train_batch_size": 400}
    run = with_callbacks(tmp_path, [log], checkpoint_freq=3, config=config)
    run.train()
    assert log.of("start", "result", "evaluation", "checkpoint", "end") == [
        ("start", 0), ("result", 1), ("evaluation", 3), ("result", 2), ("result", 3),
        ("checkpoint", "checkpoint_000003"), ("evaluation", 3), ("result", 4), ("checkpoint", "checkpoint_000004"),
        ("end", "training_iteration reached 4"),
    ]  # fmt: skip
    episodes = log.of("episode")
    assert len(episodes) == lines(run)[-1]["episodes_total"] > 0
    assert [value for _, value, _ in episodes] == [v for line in lines(run) for v in line["episode_returns"]]
    assert all(value == length for _, value, length in episodes)  # CartPole gives 1 per step
    again = Run.resume(run.folder, lambda old: old.model_copy(update={"stop": {"training_iteration": 5}}))
    again.train()
    assert weights(again) == weights_without_callbacks(tmp_path / "without", config)


def weights_without_callbacks(results: Path, config: dict[str, Any]) -> bytes:
    run = make(results, config=config, stop={"training_iteration": 5})
    run.train()
    return weights(run)


def test_a_pause_is_no_end(tmp_path: Path) -> None:
    log = Log()
    run = with_callbacks(tmp_path, [log])
    run.step()
    run.pause()
    run.train()
    assert log.of("start", "end") == [("start", 0), ("end", "training_iteration reached 4")]
    assert [call[1] for call in log.of("result")] == [1, 2, 3, 4]


def test_a_callback_may_end_the_run(tmp_path: Path) -> None:
    class Enough(Callback):
        def on_result(self, run: Run, result: dict[str, Any]) -> None:
            if result["training_iteration"] == 2:
                run.request_stop("enough")

    log = Log()
    assert with_callbacks(tmp_path, [Enough(), log]).train() == "enough"
    assert log.of("end") == [("end", "enough")]


@pytest.fixture
def engine() -> Any:
    outplay.init("process", num_cpus=2)
    yield
    outplay.shutdown()


@pytest.mark.slow
def test_workers_that_are_replaced(tmp_path: Path, engine: None) -> None:
    log = Log()
    config = {"num_workers": 2, "env_config": {"folder": str(tmp_path)}}
    run = with_callbacks(tmp_path, [log], env=probes.Crashing, config=config)
    run.step()
    assert log.of("replaced") == []
    once = run.algorithm.workers.pool.remote[1]
    outplay.kill(once)
    run.step()
    assert log.of("replaced") == [("replaced", 1)]
    run.pause()  # new workers: their restarts are counted anew
    run.step()
    for worker in run.algorithm.workers.pool.remote:
        outplay.kill(worker)
    run.step()
    assert log.of("replaced") == [("replaced", 1), ("replaced", 0), ("replaced", 1)]
    run.close()


# Metrics


class Metrics(Callback):
    def on_evaluation(self, run: Run, evaluation: dict[str, Any]) -> None:
        evaluation["doubled"] = 2 * evaluation["episode_return_mean"]

    def on_result(self, run: Run, result: dict[str, Any]) -> None:
        result["squared"] = np.float32(result["training_iteration"] ** 2)
        result["mine"] = {"count": np.int64(3), "flag": True, "none yet": float("nan")}
        result["learner"]["kl_squared"] = result["learner"]["kl"] ** 2


def test_metrics_of_callbacks_are_in_every_sink(tmp_path: Path) -> None:
    config = {"evaluation_interval": 1, "evaluation_duration": 1}
    run = with_callbacks(tmp_path, [Metrics()], loggers=["csv", "tensorboard"], config=config)
    shown: list[dict[str, Any]] = []
    run.train(shown.append)
    for iteration, (line, result) in enumerate(zip(lines(run), shown, strict=True), 1):
        assert line["squared"] == result["squared"] == iteration**2
        assert line["mine"] == {"count": 3, "flag": 1, "none yet": None}
        assert line["evaluation"]["doubled"] == 2 * line["evaluation"]["episode_return_mean"]
        assert line["learner"]["kl_squared"] == line["learner"]["kl"] ** 2
    with (run.folder.path / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["squared"]) for row in rows] == [1, 4, 9, 16]
    assert [row["mine/count"] for row in rows] == ["3"] * 4
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.folder.path / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("squared")] == [1, 4, 9, 16]
    assert run.folder.metrics().damaged == []


def adding(change: Callable[[dict[str, Any]], Any], method: str = "on_result") -> Callback:
    class Adding(Callback):
        pass

    setattr(Adding, method, lambda self, run, metrics: change(metrics))
    return Adding()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda r: r.update(best="high"), "on_result added best: a metric must be a number, not 'high'"),
        (lambda r: r.update(best=None), "on_result added best: a metric must be a number, not None"),
        (lambda r: r.update(best=[1, 2]), "on_result added best: a metric must be a number, not [1, 2]"),
        (lambda r: r.update(best=np.zeros(2)), "on_result added best: a metric must be a number, not array([0., 0.])"),
        (lambda r: r.update(best=10**400), "on_result added best: a metric must be a number, not 1000"),
        (lambda r: r["learner"].update(x=object), "on_result added learner/x: a metric must be a number, not <class"),
        (lambda r: r.update({5: 1.0}), "on_result added the metric 5; names must be strings"),
        (lambda r: r.pop("timesteps_total"), "on_result removed the metric 'timesteps_total'"),
        (lambda r: r.clear(), "on_result removed the metric 'env_steps_per_s'"),
    ],
)
def test_metrics_that_are_none(tmp_path: Path, change: Callable[[dict[str, Any]], Any], sentence: str) -> None:
    run = with_callbacks(tmp_path, [adding(change)])
    with pytest.raises(CallbackError) as caught:
        run.train()
    assert "callback tests.runs.test_callbacks:adding.<locals>.Adding: " + sentence in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert lines(run) == []


# What goes wrong


def test_a_callback_that_raises_ends_the_run(tmp_path: Path) -> None:
    log, failing = Log(), adding(lambda result: 1 / (result["training_iteration"] - 3))
    run = with_callbacks(tmp_path, [log, failing])
    with pytest.raises(CallbackError) as caught:
        run.train()
    sentence = str(caught.value)
    assert sentence.startswith(
        "callback tests.runs.test_callbacks:adding.<locals>.Adding: on_result raised ZeroDivisionError: division by "
        "zero (test_callbacks.py, line "
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    status = json.loads((run.folder.path / "status.json").read_text())
    assert (status["state"], status["error"]) == ("failed", sentence)
    assert log.of("end") == [("end", sentence)]
    assert log.of("checkpoint") == [("checkpoint", "checkpoint_000003")]
    again = Run.resume(run.folder)  # without the callbacks
    assert again.resumed_from == 3
    again.train()
    assert weights(again) == weights_of_four(tmp_path / "whole")


def weights_of_four(results: Path) -> bytes:
    run = make(results)
    run.train()
    return weights(run)


@pytest.mark.parametrize("method", ["on_train_start", "on_episode_end", "on_checkpoint", "on_train_end"])
def test_whichever_method_raises(tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Callback):
        pass

    def fail(*_: Any) -> None:
        raise KeyError("an oversight")

    setattr(Broken, method, fail)
    run = with_callbacks(tmp_path, [Broken()], checkpoint_freq=2, config={"train_batch_size": 400})
    with pytest.raises(CallbackError, match=f"Broken: {method} raised KeyError: 'an oversight'"):
        run.train()
    assert json.loads((run.folder.path / "status.json").read_text())["state"] == "failed"
    assert "there is no checkpoint" not in caplog.text
    Run.resume(run.folder).close()  # it was unlocked


def test_a_failure_elsewhere_is_what_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Log):
        def on_train_end(self, run: Run, reason: str) -> None:
            super().on_train_end(run, reason)
            raise KeyError("an oversight")

    def broken(result: dict[str, Any]) -> None:
        raise ZeroDivisionError("first")

    log = Broken()
    with pytest.raises(ZeroDivisionError):
        with_callbacks(tmp_path, [log]).train(broken)
    assert log.of("end") == [("end", "ZeroDivisionError: first")]
    assert "on_train_end raised KeyError" in caplog.text


class Misspelt(Callback):
    def on_results(self, run: Run, result: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(
    ("callback", "sentence"),
    [
        (5, "expected an outplay.Callback or an import path (module:Class), not 5"),
        (Log, "; pass an instance: Log()"),
        (Misspelt(), "Misspelt: on_results is never called. Did you mean 'on_result'?"),
        ("nothing", "no callback 'nothing'; no installed package registers one"),
        (":Thing", "expected an import path (module:Class), not ':Thing'"),
        ("nowhere:Thing", "no module 'nowhere' for callbacks 'nowhere:Thing'"),
        ("tests.runs.test_callbacks:Logg", "has no 'Logg'. Did you mean 'Log'?"),
        ("tests.runs.test_callbacks:make", "'tests.runs.test_callbacks:make' is not a subclass of outplay.Callback"),
    ],
)
def test_what_is_no_callback_is_refused_at_once(tmp_path: Path, callback: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        with_callbacks(tmp_path, [callback])
    assert sentence in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# By import path, from files and the command line


class Scene:
    """A working directory with a module of callbacks, and an `outplay` as from a fresh interpreter."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        (folder / "mycallbacks.py").write_text(MODULE)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("OUTPLAY_RESULTS", str(folder / "results"))
        self.path = list(sys.path)

    def outplay(self, *arguments: str) -> int:
        self.monkeypatch.setattr(sys, "path", list(self.path))
        self.monkeypatch.delitem(sys.modules, "mycallbacks", raising=False)
        (self.folder / "mycallbacks.imported").unlink(missing_ok=True)
        importlib.invalidate_caches()
        return exit_code(self.monkeypatch, *arguments)

    @property
    def was_imported(self) -> bool:
        return (self.folder / "mycallbacks.imported").exists()

    def run(self) -> Path:
        (found,) = (self.folder / "results").glob("*/*")
        return found


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


TRAIN = ["train", "--env", "CartPole-v1", *SMALL, "--stop", "training_iteration=2"]


def test_import_paths_at_the_command_line(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    assert scene.outplay(*TRAIN, "--callback", "mycallbacks:Counter", "--json") == 0
    assert [json.loads(line)["calls"] for line in capsys.readouterr().out.splitlines()] == [1, 2]
    for callback, sentence in (
        ("mycallbacks:Cuonter", "has no 'Cuonter'. Did you mean 'Counter'?"),
        ("mycallbacks:Needy", "callback mycallbacks:Needy: calling it without arguments raised TypeError"),
        ("mycallbacks:Plain", "is not a subclass of outplay.Callback"),
    ):
        assert scene.outplay(*TRAIN, "--callback", callback) == 2
        (told,) = capsys.readouterr().err.splitlines()
        assert sentence in told
    assert scene.outplay(*TRAIN, "--callback", "mycallbacks:Cuonter", "--dry-run") == 2
    assert len(list((scene.folder / "results").glob("*/*"))) == 1


def test_import_paths_in_an_experiment_file(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """The module is looked up beside the file. One callback of the file and one of the command line."""
    (scene.folder / "elsewhere").mkdir()
    scene.monkeypatch.chdir(scene.folder / "elsewhere")
    (scene.folder / "it.yml").write_text(
        "it: {env: CartPole-v1, callbacks: ['mycallbacks:Counter'], stop: {training_iteration: 2}, config: "
        "{num_envs: 4, train_batch_size: 40}}"
    )
    assert scene.outplay("train", "-f", "../it.yml", "--callback", "mycallbacks:Second", "--json") == 0
    assert [json.loads(line)["calls"] for line in capsys.readouterr().out.splitlines()] == [1, 2]
    recorded = outplay.RunFolder(scene.run()).experiment(trust=True)
    assert recorded.callbacks == ["mycallbacks:Counter", "mycallbacks:Second"]
    assert recorded.import_from == [str(scene.folder)]
    # A mistake in the second of two experiments is told before the first is trained.
    (scene.folder / "two.yml").write_text(
        (scene.folder / "it.yml").read_text() + "\nother: {env: CartPole-v1, callbacks: ['mycallbacks:Nothing']}"
    )
    assert scene.outplay("train", "-f", "../two.yml") == 2
    assert "two.yml, other: callbacks: module 'mycallbacks' has no 'Nothing'" in capsys.readouterr().err
    assert len(list((scene.folder / "results").glob("*/*"))) == 1


@pytest.mark.parametrize("counter", ["mycallbacks:Counter", "mycallbacks.Counter"])
def test_names_in_a_run_are_not_imported_unless_repeated_or_trusted(
    scene: Scene, capsys: pytest.CaptureFixture[str], counter: str
) -> None:
    both = ["--callback", counter, "--callback", "mycallbacks:Second"]
    assert scene.outplay(*TRAIN, *both) == 0
    resume = ["train", "--resume", str(scene.run())]
    capsys.readouterr()
    for given in ([], both[2:], ["--dry-run"]):
        assert scene.outplay(*resume, *given) == 2
        (told,) = capsys.readouterr().err.splitlines()
        assert told == (
            f"outplay: run {scene.run()} names the callback '{counter}', which would be imported; if you "
            f"trust it, repeat it with --callback {counter}, or add --trust"
        )
        assert not scene.was_imported
    for stop, more in ((3, both), (4, ["--trust"])):
        assert scene.outplay(*resume, "--stop", f"training_iteration={stop}", *more) == 0
        assert scene.was_imported
        assert outplay.RunFolder(scene.run()).metrics().results[-1]["calls"] == 1  # of this process
    assert outplay.RunFolder(scene.run()).experiment().callbacks == both[1::2]
    # Neither evaluating it nor starting from its weights runs them.
    assert scene.outplay("evaluate", str(scene.run()), "--episodes", "1") == 0
    assert scene.outplay(*TRAIN, "--init-from", str(scene.run()), "--name", "other") == 0
    assert not scene.was_imported
    # From another folder, its module is found with trust alone.
    (scene.folder / "elsewhere").mkdir()
    scene.monkeypatch.chdir(scene.folder / "elsewhere")
    capsys.readouterr()
    assert scene.outplay(*resume, "--stop", "training_iteration=5", *both) == 2
    assert f"no module 'mycallbacks' for callbacks '{counter}'" in capsys.readouterr().err
    assert scene.outplay(*resume, "--stop", "training_iteration=5", "--trust") == 0


def test_a_name_of_an_installed_package_is_trusted(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    info = scene.folder / "site" / "mine-1.0.dist-info"
    info.mkdir(parents=True)
    (scene.folder / "site" / "mycallbacks.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[outplay.callbacks]\ncounter = mycallbacks:Counter\n")
    scene.path.append(str(scene.folder / "site"))
    assert scene.outplay(*TRAIN, "--callback", "counter", "--json") == 0
    assert [json.loads(line)["calls"] for line in capsys.readouterr().out.splitlines()] == [1, 2]
    recorded = outplay.RunFolder(scene.run()).experiment(trust=True)
    assert (recorded.callbacks, recorded.import_from) == (["counter"], [])
    assert scene.outplay("train", "--resume", str(scene.run()), "--stop", "training_iteration=3", "--json") == 0
    assert [json.loads(line)["calls"] for line in capsys.readouterr().out.splitlines()] == [1]


def test_names_in_python(scene: Scene) -> None:
    run = with_callbacks(scene.folder / "results", ["mycallbacks:Counter", Log()])
    run.train()
    assert run.folder.experiment().callbacks == ["mycallbacks:Counter"]  # objects are not recorded
    with pytest.raises(CheckpointError, match="names the callback 'mycallbacks:Counter'"):
        Run.resume(run.folder)
    for more in ({"callbacks": ["mycallbacks:Counter"]}, {"trust": True}):
        again = Run.resume(run.folder, **more)  # type: ignore[arg-type]
        assert len(again.folder.experiment().callbacks) == 1
        again.close()
