"""Commands that are killed, crash, are interrupted, or find no room on the disk."""

from __future__ import annotations

import json
import random
import re
import resource
import signal
import time
from pathlib import Path

import pytest

from outplay.runs.checkpoint import checkpoints_in
from tests.cli.common import SMALL, interrupt_twice, only_run, start, wait_for

KILLED = {
    "native": ["--env", "CartPole-v1", "--run", "PPO"],
    "Python, in workers": ["--env", "tests.probes:Walk", "--run", "A2C", "--config", "normalize_observations=true"],
    "whole episodes": ["--env", "tests.probes:Walk", "--run", "PG", "--config", "env_config={length: 25}"],
    "with a curriculum, in workers": [
        "--env", "outplay.envs.examples:Maze", "--config", "env_config={size: 3, max_steps: 12}",
        "--config", "curriculum.levels=[1, 2, 3, 4, 5, 6]", "--config", "curriculum.min_episodes=2",
        "--config", "curriculum.promote_when={episode_return_mean: 0.5}", "--config", "lr=0.005",
    ],
    "with a replay, in workers": [
        "--env", "tests.probes:Walk", "--run", "DQN", "--config", "prioritized_replay=true",
        "--config", "learning_starts=200", "--config", "num_env_groups=2",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case == "native" else [pytest.mark.slow]) for case in KILLED],
)
def test_a_run_killed_at_random_moments_ends_with_the_same_weights(tmp_path: Path, case: str) -> None:
    """kill -9, again and again; each time it goes on from a checkpoint and not from the start."""
    last = 40
    common = [*KILLED[case], *SMALL, "--stop", f"training_iteration={last}", "--checkpoint-freq", "3"]
    if "workers" in case:
        common += ["--num-workers", "2"]
    undisturbed = start(tmp_path, *common, "--results-dir", "undisturbed")
    _, errors = undisturbed.communicate(timeout=100)
    assert undisturbed.returncode == 0, errors
    (whole,) = (tmp_path / "undisturbed").glob("*/*")

    rng = random.Random(case)
    killed = start(tmp_path, *common)
    wait_for(lambda: list((tmp_path / "results").glob("*/*/checkpoints/checkpoint_*")))
    folder = only_run(tmp_path)
    went_on = []
    for _ in range(2):
        time.sleep(rng.uniform(0, 0.2))
        killed.kill()
        killed.communicate()
        saved = [int(path.name.removeprefix("checkpoint_")) for path in checkpoints_in(folder / "checkpoints")]
        killed = start(tmp_path, "--resume", str(folder), "--trust")
        assert killed.stderr is not None
        line = wait_for(killed.stderr.readline)
        went_on.append(int(re.search(r"resumed from iteration (\d+)", line)[1]))  # type: ignore[index]
        assert went_on[-1] == max(saved) > 0
        while int(checkpoints_in(folder / "checkpoints")[-1].name[-6:]) <= went_on[-1] and killed.poll() is None:
            time.sleep(0.01)  # so that each life gets somewhere
    killed.communicate(timeout=100)
    assert killed.returncode == 0
    for name in ("weights.safetensors", "optimizer.safetensors", "envs.safetensors"):
        ours, theirs = (run / "checkpoints" / f"checkpoint_{last:06d}" / name for run in (folder, whole))
        assert ours.read_bytes() == theirs.read_bytes(), name
    replays = [run / "checkpoints" / f"checkpoint_{last:06d}" / "replay" for run in (folder, whole)]
    kept, expected = ({file.name: file.read_bytes() for file in replay.glob("*")} for replay in replays)
    assert kept == expected
    assert bool(kept) == ("replay" in case)
    results, undisturbed_results = (
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (folder, whole)
    )
    assert [result["training_iteration"] for result in results] == list(range(1, last + 1))
    levels = [result.get("curriculum_level", 0) for result in results]
    assert levels == [result.get("curriculum_level", 0) for result in undisturbed_results]
    assert (levels[-1] > 0) == ("curriculum" in case)


@pytest.mark.slow
def test_an_environment_that_crashes_the_program_loses_little(tmp_path: Path) -> None:
    """Without workers its end is the program's. Checkpoints are written by the clock, without being asked for."""
    body = f"""
      env: tests.probes:Crashing
      checkpoint_every_s: 0.01
      stop: {{training_iteration: 60}}
      config: {{num_envs: 4, train_batch_size: 40, num_workers: 0, env_config: {{folder: {tmp_path}}}}}
    """
    (tmp_path / "crash.yml").write_text(f"whole:{body.replace('every_s: 0.01', 'every_s: 0')}\ncrashed:{body}")
    crashed = tmp_path / "results" / "crashed"

    def saved() -> list[Path]:
        return list(crashed.glob("*/checkpoints/checkpoint_*"))

    running = start(tmp_path, "-f", "crash.yml")
    wait_for(saved)
    (tmp_path / "crash").touch()
    running.communicate(timeout=100)
    assert running.returncode == 7
    (tmp_path / "crash").unlink()
    (folder,) = crashed.glob("*")
    newest = max(int(path.name[-6:]) for path in saved())
    again = start(tmp_path, "--resume", str(folder), "--trust")
    _, err = again.communicate(timeout=100)
    assert again.returncode == 0
    assert f"resumed from iteration {newest}" in err
    (whole,) = (tmp_path / "results" / "whole").glob("*")
    assert [path.name for path in checkpoints_in(whole / "checkpoints")] == ["checkpoint_000060"]
    for name in ("weights.safetensors", "optimizer.safetensors", "envs.safetensors"):
        ours, theirs = (run / "checkpoints" / "checkpoint_000060" / name for run in (folder, whole))
        assert ours.read_bytes() == theirs.read_bytes(), name


@pytest.mark.slow
def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    """The system refuses files beyond 30 KB, as a full disk would: the second of a checkpoint's files does not fit."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    arguments = [
        "--env",
        "CartPole-v1",
        *SMALL,
        "--stop",
        "training_iteration=3",
        "--config",
        "model.fcnet_hiddens=[48]",
    ]
    running = start(tmp_path, *arguments, preexec_fn=limited)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    folder = only_run(tmp_path)
    running = start(tmp_path, *arguments[:-1], "model.fcnet_hiddens=[64, 64]", "--name", "large", preexec_fn=limited)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 2
    assert re.search(
        r"^outplay: the checkpoint .*checkpoint_000003 could not be written: File too large$", err, re.MULTILINE
    )
    assert "Traceback" not in err
    (failed,) = (tmp_path / "results" / "large").glob("*")
    assert not list((failed / "checkpoints").iterdir())
    assert len((failed / "metrics.jsonl").read_text().splitlines()) == 3
    assert json.loads((failed / "status.json").read_text())["state"] == "failed"
    assert checkpoints_in(folder / "checkpoints")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_saves_and_ends(tmp_path: Path, sent: signal.Signals) -> None:
    running = start(tmp_path, "--env", "CartPole-v1", *SMALL)
    assert running.stdout is not None
    wait_for(running.stdout.readline)
    running.send_signal(sent)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "stopping after this iteration, with a checkpoint" in err
    assert "stopped by" in out
    folder = only_run(tmp_path)
    done = len((folder / "metrics.jsonl").read_text().splitlines())
    assert [path.name for path in checkpoints_in(folder / "checkpoints")] == [f"checkpoint_{done:06d}"]


def test_two_signals_end_now(tmp_path: Path) -> None:
    slow = ["--env", "tests.probes:Walk", "--config", "env_config={sleep: 0.05}", "--config", "train_batch_size=100000"]
    running = start(tmp_path, *slow, "--num-workers", "0")
    wait_for(lambda: list((tmp_path / "results").glob("*/*/status.json")))
    time.sleep(0.5)
    err = interrupt_twice(running)
    assert err == (
        "stopping now: iteration 1 is lost; there is no checkpoint; to resume: "
        f"outplay train --resume {only_run(tmp_path).name} --trust\n"
    )
