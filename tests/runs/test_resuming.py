"""Runs that go on: from their newest checkpoint, from old weights, from config.yaml."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from outplay import PPO, CheckpointError
from outplay.runs import checkpoint
from outplay.runs.checkpoint import find_checkpoint
from outplay.runs.experiments import experiment, load_file
from outplay.runs.finding import find_run
from outplay.runs.run import Run
from tests import probes
from tests.runs.common import CONFIG, lines, make, until, weights


def test_config_yaml_runs_it_again(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    again = Run.create(load_file(run.folder.path / "config.yaml")[0], tmp_path)
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
    with (run.folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"training_iteration": 6, "cut o')
    again = Run.resume(run.folder, until({"training_iteration": 6}))
    assert again.resumed_from == 4
    again.train()
    assert [line["training_iteration"] for line in lines(again)] == [1, 2, 3, 4, 5, 6]
    assert len((run.folder.path / "progress.csv").read_text().splitlines()) == 7


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = make(tmp_path, stop={"training_iteration": 6})
    whole.train()
    run = make(tmp_path, checkpoint_freq=2)
    run.train()
    newest = run.folder.checkpoints()[-1]
    data = bytearray((newest / "weights.safetensors").read_bytes())
    data[-1] ^= 1
    (newest / "weights.safetensors").write_bytes(data)
    again = Run.resume(run.folder, until({"training_iteration": 6}))
    assert again.resumed_from == 2
    assert "weights.safetensors does not match its hash; using checkpoint_000002 instead" in caplog.text
    again.train()
    assert weights(again) == weights(whole)


def test_no_checkpoint_can_be_read(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    (run.folder.checkpoints()[0] / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"none of the checkpoints can be read: .* it has no state.json"):
        Run.resume(run.folder)


def test_a_checkpoint_of_a_newer_format_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path, checkpoint_freq=2)
    run.train()
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    with pytest.raises(CheckpointError, match="has format 1, this version of Outplay reads format 2"):
        Run.resume(run.folder)
    assert len(run.folder.checkpoints()) == 2


def test_what_a_resume_changes_is_recorded(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    Run.resume(run.folder, until({"training_iteration": 7})).close()
    assert load_file(run.folder.path / "config.yaml")[0].stop == {"training_iteration": 7}


def test_a_run_from_old_weights_can_be_resumed_before_its_first_checkpoint(tmp_path: Path) -> None:
    first = make(tmp_path / "first")
    first.train()
    data = {"name": "it", "env": "CartPole-v1", "stop": {"training_iteration": 4}, "config": CONFIG}
    second = Run.create(experiment(data, "it"), tmp_path, init_from=str(first.folder))
    second.close()
    again = Run.resume(second.folder)
    assert again.algorithm.policy.flat.equal(first.algorithm.policy.flat)
    with pytest.raises(CheckpointError, match="there is no run at nothing"):
        Run.create(experiment({**data, "name": "none"}, "it"), tmp_path, init_from="nothing")
    assert not (tmp_path / "none").exists()


def test_resuming_without_a_checkpoint_starts_again(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    expected = weights(run)
    shutil.rmtree(run.folder.checkpoints_path)
    again = Run.resume(run.folder)
    assert again.resumed_from == 0
    again.train()
    assert weights(again) == expected


def test_what_is_found_by_a_name(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.train()
    last = run.folder.checkpoints()[-1]
    assert (
        find_checkpoint(run.folder.path)
        == find_checkpoint(last)
        == find_checkpoint(last / "weights.safetensors")
        == last
    )
    for name in (run.folder.path, run.folder.path.name, run.folder.path.parent, "it"):
        assert find_run(name, tmp_path) == run.folder.path
    with pytest.raises(CheckpointError, match="is inside a run folder; give the run folder"):
        find_run(last, tmp_path)
    for nothing in ("nothing", tmp_path / "nothing"):
        with pytest.raises(CheckpointError, match="there is no run at"):
            find_run(nothing, tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint and no run at"):
        find_checkpoint(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="is not a checkpoint and contains none"):
        find_checkpoint(tmp_path)


def test_a_checkpoint_of_something_else(tmp_path: Path) -> None:
    from outplay import A2C

    with PPO(env="CartPole-v1", config=CONFIG) as trainer:
        path = trainer.save(tmp_path)
    with (
        A2C(env="CartPole-v1", config={"num_workers": 0}) as other,
        pytest.raises(CheckpointError, match="the checkpoint belongs to PPO, not to A2C"),
    ):
        other.restore(path)
    with (
        PPO(env="Acrobot-v1", config=CONFIG) as other,
        pytest.raises(CheckpointError, match=r"its observation space is Box\(.*\(CartPole-v1\), not .*\(Acrobot-v1\)"),
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
    with pytest.raises(CheckpointError, match=r"names the environment 'outplay.testing.probes:Walk', which"):
        PPO.from_checkpoint(path)
    with PPO.from_checkpoint(path, env=probes.Walk) as one, PPO.from_checkpoint(path, trust=True) as other:
        assert one.policy.flat.equal(other.policy.flat)
