"""Runs: their folder, their checkpoints, how they end and how they go on."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from outplay import PPO, CheckpointError, ConfigError, EnvError, RunError
from outplay.runs import checkpoint
from outplay.runs.checkpoint import checkpoints_in, find_checkpoint, read_checkpoint
from outplay.runs.experiments import experiment, load_file
from outplay.runs.results import find_run, results_folder
from outplay.runs.run import Run
from outplay.runs.sinks import as_json, flattened, read_metrics
from tests import probes

CONFIG = {"num_envs": 4, "num_workers": 0, "train_batch_size": 40, "sgd_minibatch_size": 20, "num_sgd_iter": 2}


def make(results: Path, **body: Any) -> Run:
    config = {**CONFIG, **body.pop("config", {})}
    data = {"name": "it", "env": "CartPole-v1", "stop": {"training_iteration": 4}, **body, "config": config}
    return Run.create(experiment(data, "the test"), results)


def until(stop: dict[str, float]) -> Any:
    return lambda recorded: recorded.model_copy(update={"stop": stop})


def lines(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]


def weights(run: Run) -> bytes:
    return (checkpoints_in(run.checkpoints)[-1] / "weights.safetensors").read_bytes()


def test_a_run_folder_holds_what_it_should(tmp_path: Path) -> None:
    run = make(tmp_path, checkpoint_freq=2)
    assert run.train() == "training_iteration reached 4"
    assert run.folder.parent == tmp_path / "it"
    assert run.folder.name.startswith("PPO_CartPole-v1_")
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "checkpoints", "config.yaml", "control", "metrics.jsonl", "status.json",
    ]  # fmt: skip
    assert [path.name for path in checkpoints_in(run.checkpoints)] == ["checkpoint_000002", "checkpoint_000004"]
    assert sorted(path.name for path in checkpoints_in(run.checkpoints)[0].iterdir()) == [
        "envs.safetensors", "manifest.json", "optimizer.safetensors", "state.json", "weights.safetensors",
    ]  # fmt: skip
    status = json.loads((run.folder / "status.json").read_text())
    assert (status["state"], status["training_iteration"], status["progress"]) == ("finished", 4, 1.0)


def test_every_line_has_the_figures(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    for number, line in enumerate(lines(run), 1):
        assert line["training_iteration"] == number
        assert line["timesteps_total"] == 40 * number
        for key in ("episodes_total", "episode_return_mean", "episode_return_min", "episode_return_max",
                    "episode_len_mean", "time_total_s", "env_steps_per_s", "learner", "stages_s"):  # fmt: skip
            assert key in line
        assert {"collect", "collect/act", "collect/step", "learn"} <= set(line["stages_s"])
        assert {"policy_loss", "vf_loss", "entropy", "kl"} <= set(line["learner"])
    seconds = [line["time_total_s"] for line in lines(run)]
    assert seconds == sorted(seconds)


def test_steps_and_returns_are_those_of_agents(tmp_path: Path) -> None:
    """CartPole gives 1 per step: over all episodes, return and length are the same, and none is lost."""
    run = make(tmp_path, stop={"timesteps_total": 2000}, config={"metrics_num_episodes": 7})
    run.train()
    for line in lines(run):
        if line["episodes_total"]:
            assert line["episode_return_mean"] == line["episode_len_mean"]
    assert len(run.algorithm.episodes.returns) == 7


def test_before_the_first_episode_has_ended_figures_are_null(tmp_path: Path) -> None:
    run = make(tmp_path, env="Pendulum-v1", stop={"training_iteration": 1})
    run.train()
    assert lines(run)[0]["episode_return_mean"] is None
    assert as_json({"a": math.nan, "b": {"c": math.inf, "d": 1.5}}) == '{"a":null,"b":{"c":null,"d":1.5}}'


@pytest.mark.parametrize(
    "stop", [{"timesteps_total": 100}, {"episodes_total": 3, "training_iteration": 99}, {"learner/entropy": 0.0}]
)
def test_any_condition_stops_the_run(tmp_path: Path, stop: dict[str, float]) -> None:
    run = make(tmp_path, stop=stop)
    run.train()
    figures = flattened(lines(run)[-1])
    assert any(figures[name] >= value for name, value in stop.items())
    for earlier in lines(run)[:-1]:
        assert all(flattened(earlier)[name] < value for name, value in stop.items())


def test_an_unknown_nested_metric_is_named_after_the_first_iteration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no metric 'learner/entropie'. Did you mean 'learner/entropy'"):
        make(tmp_path, stop={"learner/entropie": 1.0}).train()


def test_evaluation_is_in_the_metrics_and_can_stop_the_run(tmp_path: Path) -> None:
    config = {"evaluation_interval": 2, "evaluation_duration": 3}
    run = make(tmp_path, stop={"evaluation/episode_return_mean": 5, "training_iteration": 9}, config=config)
    assert run.train() == "evaluation/episode_return_mean reached 5"
    first, second = lines(run)
    assert "evaluation" not in first
    assert second["evaluation"]["episodes"] == 3


def test_a_return_that_is_to_be_confirmed(tmp_path: Path) -> None:
    """Training has reached it long before an evaluation says so: it is asked every fifth iteration, and counts then."""
    config = {"evaluation_duration": 3, "train_batch_size": 400, "num_sgd_iter": 10, "metrics_num_episodes": 10}
    run = make(tmp_path, stop={"episode_return_mean": 30}, confirm=True, video_at_end=True, config=config)
    assert run.train() == "episode_return_mean reached 30"
    found = lines(run)
    assert found[-1]["training_iteration"] % 5 == 0
    assert min(found[-1]["episode_return_mean"], found[-1]["evaluation"]["episode_return_mean"]) >= 30
    for line in found[:-1]:
        asked = line["training_iteration"] % 5 == 0 and (line["episode_return_mean"] or 0) >= 30
        assert ("evaluation" in line) == asked
    assert run.video is not None
    assert run.video.stat().st_size > 1000


def test_keep_checkpoints_keeps_the_last_and_the_best(tmp_path: Path) -> None:
    run = make(tmp_path, checkpoint_freq=1, keep_checkpoints=2, stop={"training_iteration": 12})
    run.train()
    kept = [int(path.name.removeprefix("checkpoint_")) for path in checkpoints_in(run.checkpoints)]
    scores = {line["training_iteration"]: line["episode_return_mean"] or -1.0 for line in lines(run)}
    best = max(scores.values())
    assert kept[-2:] == [11, 12]
    assert len(kept) <= 3
    assert max(scores[number] for number in kept) == best


def test_checkpoints_by_the_clock_change_nothing_else(tmp_path: Path) -> None:
    never = make(tmp_path, checkpoint_every_s=0, stop={"training_iteration": 12})
    never.train()
    often = make(tmp_path, checkpoint_every_s=1e-6, keep_checkpoints=2, stop={"training_iteration": 12})
    seen: set[str] = set()
    often.train(lambda _: seen.update(path.name for path in checkpoints_in(often.checkpoints)))
    assert len(checkpoints_in(never.checkpoints)) == 1
    assert seen
    assert len(checkpoints_in(often.checkpoints)) <= 3
    assert weights(never) == weights(often)
    timed = ("_s", "stages_s", "learner")
    for ours, theirs in zip(lines(never), lines(often), strict=True):
        assert {k: v for k, v in ours.items() if not k.endswith(timed)} == {
            k: v for k, v in theirs.items() if not k.endswith(timed)
        }
        assert ours["learner"] == theirs["learner"]


def test_by_default_it_is_saved_every_five_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is moved on by hand: 100 s per iteration."""
    run = make(tmp_path, stop={"training_iteration": 8})
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 100.0 * run.algorithm.iteration)
    run.train()
    assert [int(path.name[-6:]) for path in checkpoints_in(run.checkpoints)] == [3, 6, 8]


def test_a_limit_on_time_says_so_where_iterations_are_long(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    body = {"env": probes.Walk, "config": {"env_config": {"sleep": 0.03}}}
    run = make(tmp_path, stop={"time_total_s": 0.5}, **body)
    assert run.train() == "time_total_s reached 0.5"
    assert len(lines(run)) == 1
    assert "a run ends after a whole one, so time_total_s may exceed its limit of 0.5" in caplog.text


def test_evaluations_beside_an_iteration_count_as_time(tmp_path: Path) -> None:
    body = {"env": probes.Walk, "config": {"env_config": {"sleep": 0.001}, "evaluation_duration": 10}}
    run = make(tmp_path, stop={"training_iteration": 2}, **body)
    (run.folder / "control" / "evaluate").touch()
    run.train()
    first, second = lines(run)
    evaluated = second["time_total_s"] - first["time_this_iter_s"] - second["time_this_iter_s"]
    assert evaluated >= second["stages_s"]["evaluate"] > 0


def test_checkpoint_at_end_can_be_switched_off(tmp_path: Path) -> None:
    run = make(tmp_path, checkpoint_at_end=False)
    run.train()
    assert checkpoints_in(run.checkpoints) == []


def test_csv_and_tensorboard(tmp_path: Path) -> None:
    run = make(tmp_path, loggers=["csv", "tensorboard"], config={"evaluation_interval": 3, "evaluation_duration": 1})
    run.train()
    with (run.folder / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["training_iteration"]) for row in rows] == [1, 2, 3, 4]
    assert float(rows[0]["learner/entropy"]) == lines(run)[0]["learner"]["entropy"]
    assert [row["evaluation/episodes"] for row in rows] == ["", "", "1", ""]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("episodes_total")] == [40, 80, 120, 160]


def test_requests_are_obeyed(tmp_path: Path) -> None:
    run = make(tmp_path, stop={"training_iteration": 50})
    asked = {3: "checkpoint", 5: "evaluate", 8: "stop"}

    def ask(result: dict[str, Any]) -> None:
        if (request := asked.get(result["training_iteration"])) is not None:
            (run.folder / "control" / request).touch()

    assert run.train(ask) == "stopped by a request in control/"
    assert [path.name for path in checkpoints_in(run.checkpoints)] == ["checkpoint_000004", "checkpoint_000009"]
    assert json.loads((run.folder / "status.json").read_text())["state"] == "stopped"
    assert "evaluation" in lines(run)[5]


def test_config_yaml_runs_it_again(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    again = Run.create(load_file(run.folder / "config.yaml")[0], tmp_path)
    again.train()
    assert weights(run) == weights(again)


def test_a_finished_run_goes_on_with_another_stop(tmp_path: Path) -> None:
    whole = make(tmp_path, stop={"training_iteration": 6})
    whole.train()
    part = make(tmp_path)
    part.train()
    more = Run.resume(part.folder, until({"training_iteration": 6}))
    assert more.resumed_from == 4
    more.train()
    assert weights(more) == weights(whole)
    assert [line["training_iteration"] for line in lines(more)] == [1, 2, 3, 4, 5, 6]
    assert lines(more)[-1]["time_total_s"] > lines(part)[3]["time_total_s"]


def test_lines_after_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    run = make(tmp_path, checkpoint_freq=2, checkpoint_at_end=False, stop={"training_iteration": 5}, loggers=["csv"])
    run.train()
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"training_iteration": 6, "cut o')
    again = Run.resume(run.folder, until({"training_iteration": 6}))
    assert again.resumed_from == 4
    again.train()
    assert [line["training_iteration"] for line in lines(again)] == [1, 2, 3, 4, 5, 6]
    assert len((run.folder / "progress.csv").read_text().splitlines()) == 7


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = make(tmp_path, stop={"training_iteration": 6})
    whole.train()
    run = make(tmp_path, checkpoint_freq=2)
    run.train()
    newest = checkpoints_in(run.checkpoints)[-1]
    data = bytearray((newest / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (newest / "weights.safetensors").write_bytes(data)
    again = Run.resume(run.folder, until({"training_iteration": 6}))
    assert again.resumed_from == 2
    assert "weights.safetensors is not what was written; going back to checkpoint_000002" in caplog.text
    again.train()
    assert weights(again) == weights(whole)


def test_no_checkpoint_can_be_read(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    (checkpoints_in(run.checkpoints)[0] / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"none of the checkpoints can be read: .* it has no state.json"):
        Run.resume(run.folder)


def test_a_checkpoint_of_a_newer_format_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path, checkpoint_freq=2)
    run.train()
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    with pytest.raises(CheckpointError, match="has format 1, this version of Outplay reads format 2"):
        Run.resume(run.folder)
    assert len(checkpoints_in(run.checkpoints)) == 2


def test_what_a_resume_changes_is_recorded(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    Run.resume(run.folder, until({"training_iteration": 7})).algorithm.stop()
    assert load_file(run.folder / "config.yaml")[0].stop == {"training_iteration": 7}


def test_a_run_that_is_being_trained_is_not_resumed(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    status = json.loads((run.folder / "status.json").read_text())
    (run.folder / "status.json").write_text(json.dumps({**status, "state": "running", "pid": os.getppid()}))
    with pytest.raises(RunError, match="is being trained by process"):
        Run.resume(run.folder)
    (run.folder / "status.json").write_text(json.dumps({**status, "state": "running", "pid": 2**22 + 1}))
    assert Run.resume(run.folder).resumed_from == 4


def test_a_run_from_old_weights_can_be_resumed_before_its_first_checkpoint(tmp_path: Path) -> None:
    first = make(tmp_path / "first")
    first.train()
    data = {"name": "it", "env": "CartPole-v1", "stop": {"training_iteration": 4}, "config": CONFIG}
    second = Run.create(experiment(data, "it"), tmp_path, init_from=str(first.folder))
    second.algorithm.stop()
    again = Run.resume(second.folder)
    assert again.algorithm.policy.flat.equal(first.algorithm.policy.flat)
    with pytest.raises(CheckpointError, match="there is no run at nothing"):
        Run.create(experiment({**data, "name": "none"}, "it"), tmp_path, init_from="nothing")
    assert not (tmp_path / "none").exists()


def test_saving_twice_keeps_the_first_until_the_second_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PPO(env="CartPole-v1", config=CONFIG) as trainer:
        path = Path(trainer.save(tmp_path))
        before = (path / "state.json").read_bytes()
        real = Path.rename

        def fail(self: Path, target: Path) -> Path:
            if self.name.endswith(".part") and ".old." not in self.name:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(self, target)

        monkeypatch.setattr(checkpoint, "exchange", lambda *_: False)  # as where the file system cannot
        monkeypatch.setattr(Path, "rename", fail)
        with pytest.raises(RunError, match="No space left"):
            trainer.save(tmp_path)
        monkeypatch.undo()
        assert [file.name for file in tmp_path.iterdir()] == [path.name]
        assert (path / "state.json").read_bytes() == before
        (tmp_path / ".checkpoint_000003.99.part").mkdir()  # left by a process that was killed
        trainer.save(tmp_path)
        assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_learning_that_runs_away_is_told_as_such(tmp_path: Path) -> None:
    run = make(tmp_path, env="Pendulum-v1", config={"lr": 1e30, "grad_clip": None})
    with pytest.raises(RunError, match="training diverged"):
        run.train()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"stop": {"evaluation/episode_return_mean": 1}}, "needs evaluation_interval, or it is never reached"),
        ({"config": {"env_config": {"table": {1: 5}}}}, "env_config.table: keys must be strings, and 1 is a int"),
        ({"config": {"env_config": {"thing": object()}}}, "env_config.thing is a object, which cannot be saved"),
        ({"stop": {"evaluation/nothing": 1}}, "there is no metric 'evaluation/nothing'"),
        ({"name": "../x"}, "the name '../x' cannot be a folder's"),
    ],
)
def test_what_could_never_work_is_refused_at_once(tmp_path: Path, body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(tmp_path, **body)
    assert sentence in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_resuming_without_a_checkpoint_starts_again(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    expected = weights(run)
    shutil.rmtree(run.checkpoints)
    again = Run.resume(run.folder)
    assert again.resumed_from == 0
    again.train()
    assert weights(again) == expected


def test_what_is_found_by_a_name(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    last = checkpoints_in(run.checkpoints)[-1]
    assert find_checkpoint(run.folder) == find_checkpoint(last) == find_checkpoint(last / "weights.safetensors") == last
    for name in (run.folder, run.folder.name, run.folder.parent, "it"):
        assert find_run(name, tmp_path) == run.folder
    with pytest.raises(CheckpointError, match="is inside of a run; name the run"):
        find_run(last, tmp_path)
    for nothing in ("nothing", tmp_path / "nothing"):
        with pytest.raises(CheckpointError, match="there is no run at"):
            find_run(nothing, tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint and no run at"):
        find_checkpoint(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="is no checkpoint and holds none"):
        find_checkpoint(tmp_path)


def test_results_go_where_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTPLAY_RESULTS", raising=False)
    assert results_folder(None) == Path("~/outplay_results").expanduser()
    monkeypatch.setenv("OUTPLAY_RESULTS", "/elsewhere")
    assert results_folder(None) == Path("/elsewhere")
    assert results_folder("/here") == Path("/here")


# What goes wrong


def test_an_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RunError, match=r"the run folder .* cannot be made: Not a directory"):
        make(tmp_path / "file")


def full_disk(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    """After `allowed` files the disk is full, as far as checkpoints can tell."""
    real, written = checkpoint.write_file, []

    def write(path: Path, data: bytes) -> None:
        written.append(path)
        if len(written) > allowed:
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(checkpoint, "write_file", write)


def test_a_full_disk_while_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path, checkpoint_freq=1)
    full_disk(monkeypatch, allowed=7)  # one checkpoint of five files, and two files of the next
    with pytest.raises(RunError, match="checkpoint_000002 could not be written: No space left on device"):
        run.train()
    assert [path.name for path in run.checkpoints.iterdir()] == ["checkpoint_000001"]  # nothing half-written
    read_checkpoint(run.checkpoints / "checkpoint_000001")
    assert json.loads((run.folder / "status.json").read_text())["state"] == "failed"
    monkeypatch.undo()
    assert Run.resume(run.folder).resumed_from == 1


def test_an_environment_that_raises_costs_only_the_iteration(tmp_path: Path) -> None:
    body = {"env": probes.Flawed, "config": {"env_config": {"flaw": "raises", "after": 1100}, "train_batch_size": 2000}}
    run = make(tmp_path, stop={"training_iteration": 100}, **body)
    with pytest.raises(EnvError, match="the gripper is stuck"):
        run.train()
    status = json.loads((run.folder / "status.json").read_text())
    assert status["state"] == "failed"
    assert "the gripper is stuck" in status["error"]
    done = len(lines(run))
    assert done >= 1
    assert checkpoints_in(run.checkpoints)[-1].name == f"checkpoint_{done:06d}"
    assert len(read_metrics(run.folder / "metrics.jsonl")[0]) == done


def test_a_learner_that_fails_costs_only_the_iteration(tmp_path: Path) -> None:
    """The learning rate explodes after the fourth iteration; what came before it is kept, and can be gone on from."""
    steady = {"lr": 1e-3, "grad_clip": None}
    whole = make(tmp_path / "whole", env="Pendulum-v1", stop={"training_iteration": 6}, config=steady)
    whole.train()
    run = make(
        tmp_path,
        env="Pendulum-v1",
        stop={"training_iteration": 6},
        config={**steady, "lr_schedule": [[0, 1e-3], [160, 1e-3], [161, 1e30]]},
    )
    with pytest.raises(RunError):
        run.train()
    status = json.loads((run.folder / "status.json").read_text())
    assert (status["state"], status["training_iteration"]) == ("failed", len(lines(run)))
    again = Run.resume(run.folder, lambda old: old.model_copy(update={"config": {**old.config, "lr_schedule": None}}))
    assert again.resumed_from == len(lines(run)) > 0
    again.train()
    assert weights(again) == weights(whole)


def test_whatever_goes_wrong_what_was_learned_is_kept(tmp_path: Path) -> None:
    run = make(tmp_path)

    def broken(result: dict[str, Any]) -> None:
        if result["training_iteration"] == 3:
            raise ZeroDivisionError("in the user's own code")

    with pytest.raises(ZeroDivisionError):
        run.train(broken)
    status = json.loads((run.folder / "status.json").read_text())
    assert (status["state"], status["error"]) == ("failed", "ZeroDivisionError: in the user's own code")
    assert Run.resume(run.folder).resumed_from == 3


def test_a_checkpoint_of_something_else(tmp_path: Path) -> None:
    from outplay import A2C

    with PPO(env="CartPole-v1", config=CONFIG) as trainer:
        path = trainer.save(tmp_path)
    with (
        A2C(env="CartPole-v1", config={"num_workers": 0}) as other,
        pytest.raises(CheckpointError, match="the checkpoint is of PPO, not of A2C"),
    ):
        other.restore(path)
    with (
        PPO(env="Acrobot-v1", config=CONFIG) as other,
        pytest.raises(
            CheckpointError, match=r"its observation space is Box\(.*\(CartPole-v1\), here it is .*\(Acrobot-v1\)"
        ),
    ):
        other.restore(path)
    with (
        PPO(env="CartPole-v1", config={**CONFIG, "model": {"fcnet_hiddens": [8]}}) as other,
        pytest.raises(CheckpointError, match="of another network"),
    ):
        other.restore(path)


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    """Only JSON and safetensors; an import path in it is imported only when it is repeated or trusted."""
    with PPO(env=probes.Walk, config=CONFIG) as trainer:
        path = Path(trainer.save(tmp_path))
    assert {file.suffix for file in path.iterdir()} == {".json", ".safetensors"}
    with pytest.raises(CheckpointError, match=r"names the environment 'tests.probes:Walk', which would be imported"):
        PPO.from_checkpoint(path)
    with PPO.from_checkpoint(path, env=probes.Walk) as one, PPO.from_checkpoint(path, trust=True) as other:
        assert one.policy.flat.equal(other.policy.flat)
