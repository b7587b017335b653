"""The command line, as it is typed: train, evaluate, list."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outplay.runs.checkpoint import checkpoints_in
from tests.cli.common import SMALL, Outcome, only_run, start


def test_train_evaluate_and_list(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    code, out, _ = cli("train", "--env", "CartPole-v1", *SMALL, "--stop", "training_iteration=3", "--name", "mine")
    assert code == 0
    assert [line.split("  ")[0] for line in out.splitlines()[:3]] == ["iteration 1", "iteration 2", "iteration 3"]
    folder = only_run(tmp_path)
    assert out.splitlines()[3] == f"training_iteration reached 3; the run is in {folder}"
    assert out.splitlines()[4] == f"to watch it: outplay evaluate {folder.name} --video game.mp4"
    assert folder.parent.name == "mine"

    code, out, _ = cli("runs")
    assert code == 0
    assert re.search(rf"mine/{folder.name} +finished +3 +120 ", out)

    code, out, _ = cli("evaluate", "mine", "--episodes", "3")
    assert code == 0
    assert out.splitlines()[1].startswith("3 episodes, ")
    code, out, _ = cli("evaluate", str(folder), "--steps", "30", "--json", "--run", "PPO", "--env", "CartPole-v1")
    assert json.loads(out)["timesteps"] == 30
    assert "no episode ended within 3 steps; the return so far is 3.00" in cli("evaluate", "mine", "--steps", "3")[1]
    assert "already reached its stop condition" in cli("train", "--resume", "mine")[2]


def test_json_is_one_object_per_iteration(cli: Callable[..., Outcome]) -> None:
    code, out, _ = cli("train", "--env", "CartPole-v1", *SMALL, "--stop", "training_iteration=2", "--json")
    assert code == 0
    assert [json.loads(line)["training_iteration"] for line in out.splitlines()] == [1, 2]


def test_dry_run_prints_everything_and_does_nothing(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    import yaml

    code, out, _ = cli("train", "cartpole", "--seed", "5", "--config", "model.fcnet_activation=relu", "--dry-run")
    assert code == 0
    body = yaml.safe_load(out)["cartpole"]
    assert (body["env"], body["run"], body["stop"]) == ("CartPole-v1", "PPO", {"episode_return_mean": 475.0})
    assert (body["config"]["seed"], body["config"]["model"]["fcnet_activation"]) == (5, "relu")
    assert body["config"]["model"]["fcnet_hiddens"] == [32, 32]
    assert body["config"]["clip_param"] == 0.2
    assert not (tmp_path / "results").exists()


def test_an_experiment_file_with_an_environment_beside_it(
    cli: Callable[..., Outcome], custom: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    code, _, err = cli("train", "-f", "../custom.yml", *SMALL)
    assert (code, err) == (0, "")
    folder = only_run(tmp_path)
    assert folder.name.startswith("PPO_custom_env.CustomEnv_")
    assert len(checkpoints_in(folder / "checkpoints")) == 3

    # The command of the tour, with a checkpoint, a run and an environment that must match.
    path = str(checkpoints_in(folder / "checkpoints")[-1] / "weights.safetensors")
    code, out, _ = cli("evaluate", path, "--run", "PPO", "--env", "custom_env.CustomEnv", "--steps", "100")
    assert code == 0
    assert "100 steps" in out
    for arguments, sentence in (
        ([], "names the environment 'custom_env.CustomEnv', which would be imported"),
        (["--env", "CartPole-v1"], "is of the environment 'custom_env.CustomEnv', not of 'CartPole-v1'"),
        (["--env", "custom_env.CustomEnv", "--run", "A2C"], "belongs to PPO, not to A2C"),
    ):
        code, _, err = cli("evaluate", path, *arguments)
        assert code == 2
        assert sentence in err
    assert cli("evaluate", path, "--trust")[0] == 0

    for more in ([], ["--dry-run"]):
        code, _, err = cli("train", "--resume", str(folder), "--stop", "training_iteration=4", *more)
        assert (code, "which would be imported" in err) == (2, True)
    for wrong, sentence in (
        (["--run", "A2C"], "belongs to PPO, not to A2C"),
        (["--name", "other"], "--name is for new runs"),
        (["--stop", "training_iteration=soon"], "stop.training_iteration must be a number, not 'soon'"),
    ):
        code, _, err = cli("train", "--resume", str(folder), "--trust", *wrong)
        assert (code, sentence in err) == (2, True), err
    code, _, err = cli(
        "train", "--resume", str(folder), "--stop", "training_iteration=4", "--env", "custom_env.CustomEnv"
    )
    assert code == 0
    assert "resumed from iteration 3" in err


def test_an_environment_is_found_again_from_another_folder(
    cli: Callable[..., Outcome], custom: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = list(sys.path)
    assert cli("train", "-f", "custom.yml", *SMALL)[0] == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for arguments in (
        ["evaluate", "custom_env"],
        ["train", "--resume", "custom_env", "--stop", "training_iteration=4"],
    ):
        sys.modules.pop("custom_env", None)
        monkeypatch.setattr(sys, "path", list(paths))
        code, _, err = cli(*arguments, "--trust")
        assert code == 0, err


def test_who_stops_reading_loses_nothing(tmp_path: Path) -> None:
    with start(tmp_path, "--env", "CartPole-v1", *SMALL, "--json", "--stop", "training_iteration=100000") as running:
        assert running.stdout is not None
        running.stdout.readline()
        running.stdout.close()
        assert running.wait(60) == 0
    folder = only_run(tmp_path)
    assert json.loads((folder / "status.json").read_text())["state"] == "stopped"
    assert checkpoints_in(folder / "checkpoints")


def test_several_experiments_in_one_file(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    body = "{env: CartPole-v1, stop: {training_iteration: 1}, run: %s, config: {num_envs: 4, train_batch_size: 40}}"
    (tmp_path / "two.yml").write_text(f"a: {body % 'PPO'}\nb: {body % 'A2C'}\n")
    assert cli("train", "-f", "two.yml")[0] == 0
    assert sorted(path.parent.name for path in (tmp_path / "results").glob("*/*")) == ["a", "b"]
    code, _, err = cli("train", "-f", "two.yml", "--name", "c")
    assert (code, "--name is for one experiment" in err) == (2, True)
    (tmp_path / "wrong.yml").write_text(
        f"base: &base {body % 'PPO'}\nsecond: {{<<: *base, run: A2C, config: {{lrr: 1}}}}\n"
    )
    code, out, err = cli("train", "-f", "wrong.yml")
    assert (code, out) == (2, "")  # told before the first is trained
    assert "wrong.yml, second: A2C config: unknown setting 'lrr'" in err


def test_init_from_starts_with_old_weights(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    first = ["train", "--env", "CartPole-v1", *SMALL, "--stop", "training_iteration=2"]
    assert cli(*first, "--results-dir", "one")[0] == 0
    (old,) = (tmp_path / "one").glob("*/*")
    code, _, _ = cli(
        *first,
        "--init-from",
        str(old),
        "--config",
        "lr=0",
        "--config",
        "normalize_values=false",
        "--results-dir",
        "two",
    )
    assert code == 0
    (new,) = (tmp_path / "two").glob("*/*")
    weights = [checkpoints_in(run / "checkpoints")[-1] / "weights.safetensors" for run in (old, new)]
    assert weights[0].read_bytes() != b""
    from safetensors.numpy import load_file

    a, b = (load_file(path) for path in weights)
    assert (a["policy_head.weight"] == b["policy_head.weight"]).all()


def test_check_env(cli: Callable[..., Outcome], custom: None) -> None:
    code, out, _ = cli("check-env", "custom_env.CustomEnv")
    assert (code, out.splitlines()[-1]) == (0, "no problem found")
    assert cli("check-env", "CartPole-v1")[0] == 0
    code, out, _ = cli("check-env", "tests.probes:Old")
    assert (code, out.splitlines()[-1]) == (2, "1 problem found")


def test_recipes_are_listed(cli: Callable[..., Outcome]) -> None:
    code, out, _ = cli("recipes")
    assert code == 0
    assert re.search(r"^cartpole +CartPole-v1 with PPO", out, re.MULTILINE)


@pytest.mark.parametrize("command", [[], ["train"], ["evaluate"], ["runs"], ["recipes"], ["check-env"]])
def test_help_fits_a_screen(cli: Callable[..., Outcome], command: list[str]) -> None:
    code, out, _ = cli(*command, "--help")
    assert code == 0
    assert len(out.splitlines()) <= 40
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("env", ["CartPole-v1", "ALE/Pong-v5"])
def test_a_video(cli: Callable[..., Outcome], tmp_path: Path, env: str) -> None:
    small = ["--config", "model={fcnet_hiddens: [8], conv_filters: [[4, 8, 8]]}", "--config", "max_episode_steps=20"]
    assert cli("train", "--env", env, *SMALL, *small, "--stop", "training_iteration=1")[0] == 0
    code, out, err = cli("evaluate", str(only_run(tmp_path)), "--episodes", "1", "--video", "game.mp4")
    assert code == 0, err
    assert "video game.mp4: return" in out
    import imageio_ffmpeg

    frames, _ = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "game.mp4"))
    assert 5 < frames <= 21


def test_on_a_terminal_there_is_a_panel(tmp_path: Path) -> None:
    mine, theirs = pty.openpty()
    environment = {**os.environ, "OUTPLAY_RESULTS": str(tmp_path), "COLUMNS": "100", "LINES": "40", "TERM": "xterm"}
    command = [
        sys.executable,
        "-m",
        "outplay",
        "train",
        "--env",
        "CartPole-v1",
        *SMALL,
        "--stop",
        "training_iteration=30",
    ]
    with subprocess.Popen(command, env=environment, stdout=theirs, stderr=subprocess.PIPE, text=True) as running:
        os.close(theirs)
        text = b""
        while True:
            try:
                piece = os.read(mine, 65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            text += piece
    os.close(mine)
    shown = text.decode()
    assert running.returncode == 0
    for part in ("PPO on CartPole-v1", "training_iteration ≥ 30", "steps/s", "return", "collect", "learn", "▁"):
        assert part in shown, part


def test_batch_size_is_in_steps_unless_the_recipe_counts_episodes(cli: Callable[..., Outcome]) -> None:
    import yaml

    _, out, _ = cli("train", "cartpole", "--batch-size", "512", "--dry-run")
    assert yaml.safe_load(out)["cartpole"]["config"]["train_batch_size"] == 512
    _, out, _ = cli("train", "pong-pg", "--batch-size", "60", "--dry-run")
    assert yaml.safe_load(out)["pong-pg"]["config"]["train_batch_episodes"] == 60
