"""The loggers wandb and mlflow, with the real packages: W&B offline, MLflow's file store."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from outplay import PPO, Callback
from outplay.cli.display import Display
from outplay.cli.interrupts import interruptible
from outplay.errors import CallbackError, ConfigError, RunError
from outplay.runs import tracking
from outplay.runs.run import Run
from tests.cli.common import Outcome
from tests.cli.conftest import cli  # noqa: F401 - a fixture
from tests.runs.common import CONFIG, lines, make, until

ROOT = Path(__file__).parents[2]
OFFLINE = {"wandb": {"project": "poles", "mode": "offline", "tags": ["test"]}}


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture
def wandb() -> Any:
    return pytest.importorskip("wandb", reason="outplay[wandb] is not installed")


@pytest.fixture
def mlflow() -> Any:
    return pytest.importorskip("mlflow", reason="outplay[mlflow] is not installed")


class Squared(Callback):
    def on_result(self, run: Run, result: dict[str, Any]) -> None:
        result["mine"] = {"squared %": result["training_iteration"] ** 2, "unknown": float("nan")}


def offline_records(folder: Path) -> Iterator[Any]:
    """The records of all offline runs in a folder, oldest first."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted(folder.rglob("*.wandb"), key=lambda file: file.stat().st_ctime_ns):
        yield from map(Record.FromString, tracking._leveldb_records(path.read_bytes()))


def wandb_history(folder: Path) -> list[dict[str, Any]]:
    found = [record.history for record in offline_records(folder) if record.WhichOneof("record_type") == "history"]
    return [{item.key or item.nested_key[0]: json.loads(item.value_json) for item in row.item} for row in found]


def mlflow_client(folder: Path) -> tuple[Any, str]:
    from mlflow import MlflowClient

    return MlflowClient((folder / "mlruns").as_uri()), json.loads((folder / "mlflow.json").read_text())["id"]


def mlflow_history(folder: Path, metric: str) -> list[tuple[int, float]]:
    client, run = mlflow_client(folder)
    return [(point.step, point.value) for point in client.get_metric_history(run, metric)]


def test_wandb_gets_every_metric_and_the_settings(wandb: Any, tmp_path: Path) -> None:
    run = make(tmp_path, loggers=["csv", OFFLINE], stop={"training_iteration": 2})
    run.train(callbacks=[Squared()])
    rows = wandb_history(run.folder.path)
    assert [row["_step"] for row in rows] == [1, 2]
    assert [row["timesteps_total"] for row in rows] == [40, 80]
    assert [row["mine/squared %"] for row in rows] == [1, 4]
    assert [row["learner/entropy"] for row in rows] == [line["learner"]["entropy"] for line in lines(run)]
    assert "mine/unknown" not in rows[0]
    records = list(offline_records(run.folder.path))
    (begun,) = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    assert (begun.project, begun.run_group, begun.display_name) == ("poles", "it", run.folder.path.name)
    assert list(begun.tags) == ["test"]
    updates = [update for record in records for update in record.config.update]
    settings = {update.key: json.loads(update.value_json) for update in updates if update.key}
    assert (settings["algorithm"], settings["sgd_minibatch_size"], settings["env"]) == ("PPO", 20, "CartPole-v1")


def test_mlflow_gets_every_metric_and_the_settings(mlflow: Any, tmp_path: Path) -> None:
    options = {"experiment_name": "sticks", "run_name": "first", "tags": {"team": "a"}}
    run = make(tmp_path, loggers=[{"mlflow": options}], stop={"training_iteration": 2})
    run.train(callbacks=[Squared()])
    folder = run.folder.path
    assert mlflow_history(folder, "training_iteration") == [(40, 1), (80, 2)]
    assert mlflow_history(folder, "mine/squared _") == [(40, 1), (80, 4)]
    entropy = [line["learner"]["entropy"] for line in lines(run)]
    assert [value for _, value in mlflow_history(folder, "learner/entropy")] == entropy
    client, run_id = mlflow_client(folder)
    found = client.get_run(run_id)
    assert found.data.params["algorithm"] == "PPO"
    assert found.data.params["sgd_minibatch_size"] == "20"
    assert found.data.params["optimizer.type"] == "adam"
    assert (found.info.run_name, found.data.tags["team"], found.info.status) == ("first", "a", "FINISHED")
    assert client.get_experiment(found.info.experiment_id).name == "sticks"


def test_a_resumed_run_continues_the_same_runs_and_repeats_no_iteration(
    wandb: Any, mlflow: Any, tmp_path: Path
) -> None:
    loggers = [OFFLINE, "mlflow"]
    run = make(tmp_path, loggers=loggers, checkpoint_freq=2, checkpoint_at_end=False, stop={"training_iteration": 3})
    run.train()
    assert [path.name for path in run.folder.checkpoints()] == ["checkpoint_000002"]  # iteration 3 is repeated
    ids = [json.loads((run.folder.path / f"{name}.json").read_text())["id"] for name in ("wandb", "mlflow")]
    resumed = Run.resume(run.folder, until({"training_iteration": 5}))
    resumed.train()
    folder = resumed.folder.path
    assert [json.loads((folder / f"{name}.json").read_text())["id"] for name in ("wandb", "mlflow")] == ids
    assert [row["training_iteration"] for row in wandb_history(folder)] == [1, 2, 3, 4, 5]
    begun = [record.run.run_id for record in offline_records(folder) if record.WhichOneof("record_type") == "run"]
    assert begun == [ids[0]] * 2
    steps = [(40 * iteration, float(iteration)) for iteration in range(1, 6)]
    assert mlflow_history(folder, "training_iteration") == steps
    assert [line["training_iteration"] for line in lines(resumed)] == [1, 2, 3, 4, 5]
    alone = make(tmp_path, stop={"training_iteration": 5})
    alone.train()
    assert lines(alone)[-1]["learner"] == lines(resumed)[-1]["learner"]  # loggers are not part of the result


KILLED = """
import os, signal, sys
from pathlib import Path
import outplay
from tests.runs.common import make
from tests.runs.test_tracking import OFFLINE

class Kill(outplay.Callback):
    def on_result(self, run, result):
        if result["training_iteration"] == 30:
            os.kill(os.getpid(), signal.SIGKILL)

run = make(Path(sys.argv[1]), loggers=[OFFLINE, "mlflow"], checkpoint_freq=20, stop={"training_iteration": 40})
run.train(callbacks=[Kill()])
"""


@pytest.mark.slow
def test_after_kill_9_no_iteration_is_missing_or_there_twice(
    wandb: Any, mlflow: Any, tmp_path: Path, run_script: Callable[..., Any]
) -> None:
    """W&B writes its file in blocks: without its process, the last iterations are lost."""
    others = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # a W&B process of its own
    assert run_script(KILLED, str(tmp_path), env={**others, "PYTHONPATH": str(ROOT)}).returncode == -9
    (folder,) = (tmp_path / "it").iterdir()
    assert len(wandb_history(folder)) < 29
    resumed = Run.resume(folder, until({"training_iteration": 32}))
    resumed.train()
    expected = list(range(1, 33))
    assert [row["training_iteration"] for row in wandb_history(folder)] == expected
    assert [value for _, value in mlflow_history(folder, "training_iteration")] == expected


def test_a_logger_that_is_added_later_gets_the_earlier_results(mlflow: Any, tmp_path: Path) -> None:
    run = make(tmp_path, stop={"training_iteration": 2})
    run.train()
    more = {"stop": {"training_iteration": 3}, "loggers": ["mlflow"]}
    resumed = Run.resume(run.folder, lambda recorded: recorded.model_copy(update=more))
    resumed.train()
    assert [value for _, value in mlflow_history(resumed.folder.path, "training_iteration")] == [1, 2, 3]


def test_a_paused_run_goes_on_with_the_same_runs(wandb: Any, mlflow: Any, tmp_path: Path) -> None:
    run = make(tmp_path, loggers=[OFFLINE, "mlflow"])
    for _ in range(4):
        run.step()
        run.pause()
    assert [row["training_iteration"] for row in wandb_history(run.folder.path)] == [1, 2, 3, 4]
    assert [value for _, value in mlflow_history(run.folder.path, "training_iteration")] == [1, 2, 3, 4]


class Ending(Callback):
    """Ends the run at its second iteration."""

    def __init__(self, how: str) -> None:
        self.how = how

    def on_result(self, run: Run, result: dict[str, Any]) -> None:
        if result["training_iteration"] == 2:
            match self.how:
                case "fails":
                    raise ValueError("no more")
                case "interrupt":
                    raise KeyboardInterrupt
                case "Ctrl-C at the command line":
                    os.kill(os.getpid(), signal.SIGINT)
                case "stops":
                    run.request_stop("enough")


@pytest.mark.parametrize(
    ("how", "status", "code"),
    [("fails", "FAILED", 1), ("interrupt", "KILLED", 255), ("Ctrl-C at the command line", "KILLED", 255)],
)
def test_the_services_know_how_a_run_ended(
    wandb: Any, mlflow: Any, tmp_path: Path, how: str, status: str, code: int
) -> None:
    run = make(tmp_path, loggers=[OFFLINE, "mlflow"])
    shown = io.StringIO()
    with suppress(CallbackError, KeyboardInterrupt), interruptible(run, Display(lambda _: None), shown):
        run.train(callbacks=[Ending(how)])
    folder = run.folder.path
    assert _mlflow_status(folder) == status
    assert _wandb_exit_codes(folder) == [code]
    resumed = Run.resume(run.folder)
    resumed.train(callbacks=[Ending("stops")])
    assert _mlflow_status(folder) == "FINISHED"
    assert _wandb_exit_codes(folder) == [code, 0]


def _mlflow_status(folder: Path) -> str:
    client, run = mlflow_client(folder)
    return str(client.get_run(run).info.status)


def _wandb_exit_codes(folder: Path) -> list[int]:
    return [r.exit.exit_code for r in offline_records(folder) if r.WhichOneof("record_type") == "exit"]


def test_a_trainer_whose_program_fails_is_a_failed_run(mlflow: Any, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTPLAY_RESULTS", str(tmp_path))
    trainer = PPO("CartPole-v1", CONFIG, run={"name": "it", "loggers": ["mlflow"]})
    with suppress(ZeroDivisionError), trainer:
        trainer.train()
        raise ZeroDivisionError
    assert trainer.run is not None
    assert _mlflow_status(trainer.run.folder.path) == "FAILED"


class Outage(Callback):
    """MLflow's store is away from iteration `first` until iteration `last` has ended."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    def on_result(self, run: Run, result: dict[str, Any]) -> None:
        store = run.folder.path / "mlruns"
        if result["training_iteration"] == self.first:
            store.rename(store.with_name("away"))
        if result["training_iteration"] == self.last + 1:
            store.with_name("away").rename(store)


def test_a_failing_service_does_not_end_the_run(
    mlflow: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "_RETRY_S", 0.0)
    run = make(tmp_path, loggers=["mlflow"], stop={"training_iteration": 5})
    run.train(callbacks=[Outage(2, 3)])
    said = [record.getMessage() for record in caplog.records if "mlflow" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("loggers: mlflow failed: ")
    assert "training continues, and the results are sent when it works again" in said[0]
    assert [value for _, value in mlflow_history(run.folder.path, "training_iteration")] == [1, 2, 3, 4, 5]


def test_what_could_not_be_sent_is_told_at_the_end_and_sent_by_a_resumed_run(
    mlflow: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make(tmp_path, loggers=["mlflow"], stop={"training_iteration": 3})
    run.train(callbacks=[Outage(2, 9)])
    assert "loggers: 2 iterations could not be sent to mlflow; metrics.jsonl has them" in caplog.text
    (run.folder.path / "away").rename(run.folder.path / "mlruns")
    resumed = Run.resume(run.folder, until({"training_iteration": 4}))
    resumed.train()
    assert [value for _, value in mlflow_history(run.folder.path, "training_iteration")] == [1, 2, 3, 4]


def test_wandb_that_dies_does_not_end_the_run(wandb: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Callback):
        def on_result(self, run: Run, result: dict[str, Any]) -> None:
            if result["training_iteration"] == 2:
                (sink,) = [sink for sink in run._recorder._sinks if isinstance(sink, tracking.Wandb)]
                sink._run.finish()  # the handle is then closed: logging with it raises wandb.Error

    run = make(tmp_path, loggers=[OFFLINE], stop={"training_iteration": 4})
    run.train(callbacks=[Broken()])
    assert len(lines(run)) == 4
    assert [row["training_iteration"] for row in wandb_history(run.folder.path)] == [1]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage().split(":")[1].split()[0] for record in warnings] == ["wandb", "3"]


@pytest.mark.parametrize(
    ("loggers", "message"),
    [
        ("[{wandb: {projct: x}}]", "loggers: wandb: unknown setting 'projct'. Did you mean 'project'?"),
        ("[{wandb: {mode: sometimes}}]", "loggers: wandb: mode must be online or offline or null, not 'sometimes'"),
        ("[{mlflow: {tracking_url: x}}]", "loggers: mlflow: unknown setting 'tracking_url'. Did you mean 'tracking"),
        ("[{csv: {columns: 3}}]", "loggers: csv: unknown setting 'columns'"),
        ("[{wandb: offline}]", "loggers: {'wandb': 'offline'} is neither a name nor {name: options}"),
        ("[wandbb]", "loggers: no logger 'wandbb'. Did you mean 'wandb'?"),
        ("[3]", "loggers: 3 is neither a name nor {name: options}"),
    ],
)  # fmt: skip
def test_wrong_options_are_told_before_training(
    cli: Callable[..., Outcome],  # noqa: F811
    tmp_path: Path,
    loggers: str,
    message: str,
) -> None:
    code, out, err = cli("train", "--env", "CartPole-v1", "--set", f"loggers={loggers}")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_a_package_that_is_not_installed_is_told_before_training(
    cli: Callable[..., Outcome],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    from outplay.runs import sinks

    (tmp_path / name).mkdir()  # a folder of this name can be imported, but is not the package
    found = sinks.find_spec
    monkeypatch.setattr(sinks, "find_spec", lambda module: None if module == name else found(module))
    code, out, err = cli("train", "--env", "CartPole-v1", "--set", f"loggers=[{name}]")
    assert (code, out) == (2, "")
    assert err == f"outplay: loggers: {name} is not installed: pip install 'outplay[{name}]'\n"
    assert not (tmp_path / "results").exists()


def test_a_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outplay.runs.sinks import _is_installed

    (tmp_path / "a_folder_like_wandb").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not _is_installed("a_folder_like_wandb")
    assert _is_installed("yaml")


def test_a_trainer_checks_its_loggers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTPLAY_RESULTS", str(tmp_path))
    with pytest.raises(ConfigError, match="loggers: wandb: unknown setting 'x'"):
        PPO("CartPole-v1", CONFIG, run={"name": "poles", "loggers": [{"wandb": {"x": 1}}]})


def test_a_service_that_cannot_be_reached_at_the_start_is_one_sentence(mlflow: Any, tmp_path: Path) -> None:
    run = make(tmp_path, loggers=[{"mlflow": {"tracking_uri": "http://127.0.0.1:9"}}])
    with pytest.raises(RunError, match=r"loggers: mlflow failed to start: .*; check tracking_uri") as caught:
        run.train()
    assert len(str(caught.value).splitlines()) == 1
    assert run.algorithm.iteration == 0


def test_wandb_without_a_key_does_not_ask_for_one(wandb: Any, tmp_path: Path) -> None:
    run = make(tmp_path, loggers=["wandb"])
    with pytest.raises(RunError, match=r"loggers: wandb has no API key; run `wandb login`"):
        run.train()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"id": "../x"}'])
def test_a_damaged_id_is_one_sentence(wandb: Any, tmp_path: Path, text: str) -> None:
    run = make(tmp_path, loggers=[OFFLINE])
    (run.folder.path / "wandb.json").write_text(text)
    with pytest.raises(RunError, match=r"wandb.json is damaged; delete it to start a new run at wandb"):
        run.train()


def test_a_package_can_register_a_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.test_registry import install

    code = """
from outplay.settings import Settings

class Options(Settings):
    file: str = "own.txt"

class Sink:
    Options = Options

    def __init__(self, context, options):
        self.path = context.folder / options.file

    def write(self, result):
        with self.path.open("a") as file:
            file.write(f"{result['training_iteration']}\\n")

    def close(self):
        pass
"""
    install(tmp_path / "site", "strange", "[outplay.loggers]\nown = strange_sink:Sink\n", strange_sink=code)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    run = make(tmp_path, loggers=[{"own": {"file": "mine.txt"}}], stop={"training_iteration": 2})
    run.train()
    assert (run.folder.path / "mine.txt").read_text() == "1\n2\n"
