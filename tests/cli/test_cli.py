"""The command line, as it is typed."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outplay.cli import main
from outplay.runs import experiments
from outplay.runs.checkpoint import checkpoints_in

SMALL = ["--config", "num_envs=4", "--config", "train_batch_size=40", "--num-workers", "0"]
CUSTOM = """
import gymnasium
import numpy as np

class CustomEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(action), self.steps == 10, False, {}

    def render(self):
        return np.zeros((64, 64, 3), np.uint8)
"""
FILE = """
custom_env:
    env: custom_env.CustomEnv
    run: PPO
    checkpoint_freq: 1
    stop:
        training_iteration: 3
"""

Outcome = tuple[int, str, str]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command in this process, from an empty folder; (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTPLAY_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["outplay", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def custom(tmp_path: Path) -> None:
    (tmp_path / "custom_env.py").write_text(CUSTOM)
    (tmp_path / "custom.yml").write_text(FILE)
    sys.modules.pop("custom_env", None)


def only_run(tmp_path: Path) -> Path:
    (found,) = (tmp_path / "results").glob("*/*")
    return found


def test_train_evaluate_and_list(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    code, out, _ = cli("train", "--env", "CartPole-v1", *SMALL, "--stop", "training_iteration=3", "--name", "mine")
    assert code == 0
    assert [line.split("  ")[0] for line in out.splitlines()[:3]] == ["iteration 1", "iteration 2", "iteration 3"]
    folder = only_run(tmp_path)
    assert out.splitlines()[3] == f"training_iteration reached 3; the run is in {folder}"
    assert out.splitlines()[4] == "watch it: outplay evaluate mine --video game.mp4"
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
    assert "reached its stop condition already" in cli("train", "--resume", "mine")[2]


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
        (["--env", "custom_env.CustomEnv", "--run", "A2C"], "is of PPO, not of A2C"),
    ):
        code, _, err = cli("evaluate", path, *arguments)
        assert code == 2
        assert sentence in err
    assert cli("evaluate", path, "--trust")[0] == 0

    for more in ([], ["--dry-run"]):
        code, _, err = cli("train", "--resume", str(folder), "--stop", "training_iteration=4", *more)
        assert (code, "which would be imported" in err) == (2, True)
    for wrong, sentence in (
        (["--run", "A2C"], "is of PPO, not of A2C"),
        (["--name", "other"], "--name is for new runs"),
        (["--stop", "training_iteration=soon"], "stop.training_iteration must be a number, not 'soon'"),
    ):
        code, _, err = cli("train", "--resume", str(folder), "--trust", *wrong)
        assert (code, sentence in err) == (2, True), err
    code, _, err = cli(
        "train", "--resume", str(folder), "--stop", "training_iteration=4", "--env", "custom_env.CustomEnv"
    )
    assert code == 0
    assert "went on from iteration 3" in err


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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train"], "nothing to train: name a recipe"),
        (["train", "cartpol"], "no recipe 'cartpol'. Did you mean 'cartpole'?"),
        (["train", "cartpole", "-f", "x.yml"], "a recipe and -f cannot be combined"),
        (["train", "-f", "nowhere.yml"], "there is no file nowhere.yml"),
        (["train", "--env", "CartPole-v9"], "no environment 'CartPole-v9'. Did you mean 'CartPole-v1'?"),
        (["train", "--env", "nowhere.Env"], "no module 'nowhere' for the environment 'nowhere.Env'"),
        (["train", "--env", "CartPole-v1", "--run", "PPPO"], "no algorithm 'PPPO'. Did you mean 'PPO'?"),
        (["train", "--env", "CartPole-v1", "--stop", "timestep=5"], "there is no metric 'timestep'. Did you mean"),
        (
            ["train", "--env", "CartPole-v1", "--stop", "timesteps_total"],
            "--stop takes KEY=VALUE, not 'timesteps_total'",
        ),
        (["train", "--env", "CartPole-v1", "--config", "env=Acrobot-v1"], "two environments are named"),
        (["train", "--env", "CartPole-v1", "--stop", "training_iteration=.nan"], "stop.training_iteration must be"),
        (["train", "--env", "CartPole-v1", "--config", "lrr=1"], "unknown setting 'lrr'. Did you mean 'lr'?"),
        (["train", "--env", "CartPole-v1", "--config", "lr=fast"], "lr must be a number of at least 0, not 'fast'"),
        (["train", "--env", "CartPole-v1", "--num-workers", "many"], "--num-workers takes a whole number or auto"),
        (["train", "--env", "CartPole-v1", "--engine", "sparks"], "no engine 'sparks'"),
        (["train", "--env", "CartPole-v1", "--results-dir", "file"], "cannot be made: "),
        (["train", "--resume", "nothing"], "there is no run at nothing"),
        (["train", "--resume", "x", "--init-from", "y"], "give one of them"),
        (["evaluate", "nothing"], "there is no run at nothing"),
        (["evaluate", "x", "--episodes", "3", "--steps", "3"], "cannot be combined"),
        (["check-env", "nowhere:Env"], "no module 'nowhere'"),
        (["train", "--env", "Blackjack-v1", "--config", "framework=tf2"], "framework 'tf2' is not supported"),
        (["train", "--resume", "**x"], "there is no run at **x"),
        (["train", "--resume", "x" * 5000], "cannot be used: File name too long"),
        (["train", "--resume", "abc/" * 1250], "cannot be used: File name too long"),
        (["train", "--env", "CartPole-v1", "--init-from", "x" * 5000], "cannot be used: File name too long"),
        (["train", "--env", "CartPole-v1", "--results-dir", "x" * 5000], "cannot be used: File name too long"),
        (["train", "-f", "x" * 5000], "cannot be read: File name too long"),
        (["evaluate", "~nobody-of-that-name/run"], "cannot be used: Could not determine home directory"),
        (["evaluate", "x", "--video", "x" * 5000], "cannot be used: File name too long"),
        (["runs", "--results-dir", "x" * 5000], "cannot be used: File name too long"),
        (["train", "--env", "CartPole-v1", "--stop", "timesteps_total=-5"], "stop.timesteps_total must be more than 0"),
        (
            ["train", "--env", "CartPole-v1", "--dry-run", "--engine", "nope"],
            "--engine: no engine 'nope'; valid: inline",
        ),
        (["train", "--env", "CartPole-v1", "--dry-run", "--engine", "inline", "--address", "x"], "is for engine='ray'"),
        (
            ["train", "--env", "CartPole-v1", "--config", "model.fcnet_hiddens=[1000000, 1000000]"],
            "model.fcnet_hiddens: 1,000,004,000,000 parameters need 16,000 GB",
        ),
        (["train", "--env", "CartPole-v1", "--config", "." * 5000 + "=1"], "no setting is nested that deep"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    cli: Callable[..., Outcome], tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = cli(*arguments)
    assert code == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["file"]  # nothing half-written


def test_what_nobody_foresaw_is_one_sentence_and_a_file(
    cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise KeyError("an oversight")

    monkeypatch.setattr(experiments, "recipe_names", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code, _, err = cli("recipes")
    assert code == 1
    (sentence,) = err.strip().splitlines()
    assert sentence.startswith("outplay: KeyError: 'an oversight'; this is a bug in Outplay")
    (file,) = tmp_path.glob("outplay-traceback-*.txt")
    assert str(file) in sentence
    assert "in fail" in file.read_text()
    assert "'recipes'" in file.read_text()
    for arguments in (["recipes", "--traceback"], ["--traceback", "recipes"]):
        code, _, err = cli(*arguments)
        assert code == 1
        assert "Traceback (most recent call last)" in err
        assert "in fail" in err
    monkeypatch.setenv("OUTPLAY_TRACEBACK", "1")
    assert "in fail" in cli("recipes")[2]


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (SystemExit(3), 3), (EOFError("cut"), 1)])
def test_other_ways_to_end(
    cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(experiments, "recipe_names", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended, _, err = cli("recipes")
    assert ended == code
    assert ("this is a bug in Outplay" in err) == isinstance(error, EOFError)
    assert len(list(tmp_path.glob("outplay-traceback-*"))) == isinstance(error, EOFError)


def test_the_traceback_of_a_mistake_is_shown_when_asked_for(cli: Callable[..., Outcome]) -> None:
    code, _, err = cli("train", "cartpol", "--traceback")
    assert code == 2
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1].startswith("outplay: no recipe 'cartpol'")


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


# With processes of their own


def start(tmp_path: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "OUTPLAY_RESULTS": str(tmp_path / "results"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-m", "outplay", "train", *arguments]
    return subprocess.Popen(
        command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)
    return found


KILLED = {
    "native": ["--env", "CartPole-v1", "--run", "PPO"],
    "Python, in workers": ["--env", "tests.probes:Walk", "--run", "A2C", "--config", "normalize_observations=true"],
    "whole episodes": ["--env", "tests.probes:Walk", "--run", "PG", "--config", "env_config={length: 25}"],
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
        went_on.append(int(re.search(r"went on from iteration (\d+)", line)[1]))  # type: ignore[index]
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
    numbers = [json.loads(line)["training_iteration"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert numbers == list(range(1, last + 1))


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
    assert f"went on from iteration {newest}" in err
    (whole,) = (tmp_path / "results" / "whole").glob("*")
    assert [path.name for path in checkpoints_in(whole / "checkpoints")] == ["checkpoint_000060"]
    for name in ("weights.safetensors", "optimizer.safetensors", "envs.safetensors"):
        ours, theirs = (run / "checkpoints" / "checkpoint_000060" / name for run in (folder, whole))
        assert ours.read_bytes() == theirs.read_bytes(), name


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
    assert "ending after this iteration, with a checkpoint" in err
    assert "stopped by" in out
    folder = only_run(tmp_path)
    done = len((folder / "metrics.jsonl").read_text().splitlines())
    assert [path.name for path in checkpoints_in(folder / "checkpoints")] == [f"checkpoint_{done:06d}"]


def test_two_signals_end_now(tmp_path: Path) -> None:
    slow = ["--env", "tests.probes:Walk", "--config", "env_config={sleep: 0.05}", "--config", "train_batch_size=100000"]
    running = start(tmp_path, *slow, "--num-workers", "0")
    wait_for(lambda: list((tmp_path / "results").glob("*/*/status.json")))
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    assert running.stderr is not None
    while "Ctrl-C again ends now" not in running.stderr.readline():
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Traceback" not in err


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
    for part in ("PPO on CartPole-v1", "until training_iteration ≥ 30", "steps/s", "return", "collect", "learn", "▁"):
        assert part in shown, part


def test_the_recipe_of_the_readme_solves_cartpole(cli: Callable[..., Outcome]) -> None:
    code, out, _ = cli("train", "cartpole", "--json")
    assert code == 0
    last = json.loads(out.splitlines()[-1])
    assert last["episode_return_mean"] >= 475
    assert last["episodes_total"] >= 20


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_recipe_cartpole_dqn_solves_it_within_50_000_steps(cli: Callable[..., Outcome]) -> None:
    code, out, _ = cli("train", "cartpole-dqn", "--json")
    assert code == 0
    last = json.loads(out.splitlines()[-1])
    assert last["episode_return_mean"] >= 475
    assert last["timesteps_total"] <= 50_000


def test_pong_pg_prints_a_line_per_game_and_goes_on_where_it_was(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    short = ["--config", "max_episode_steps=60", "--num-workers", "0"]
    code, out, _ = cli("train", "pong-pg", "--batch-size", "2", *short, "--stop", "training_iteration=10")
    assert code == 0
    games = [
        re.fullmatch(r"batch (\d+), reward (-?\d+), running mean (-?\d+\.\d\d)", line) for line in out.splitlines()
    ]
    played = [game.groups() for game in games if game is not None]
    assert [int(batch) for batch, _, _ in played] == [batch for batch in range(1, 11) for _ in range(2)]
    mean = float(played[0][1])
    for _, reward, shown in played[1:]:
        mean = 0.99 * mean + 0.01 * float(reward)
        assert float(shown) == pytest.approx(mean, abs=0.006)
    assert [path.name for path in (only_run(tmp_path) / "checkpoints").iterdir()] == ["checkpoint_000010"]

    code, out, err = cli("train", "--resume", "pong-pg", "--stop", "training_iteration=11")
    assert code == 0
    assert "went on from iteration 10" in err
    batch, reward, shown = re.findall(r"batch (\d+), reward (-?\d+), running mean (-?\d+\.\d\d)", out)[0]
    assert batch == "11"
    assert float(shown) == pytest.approx(0.99 * mean + 0.01 * float(reward), abs=0.006)


def test_batch_size_is_in_steps_unless_the_recipe_counts_episodes(cli: Callable[..., Outcome]) -> None:
    import yaml

    _, out, _ = cli("train", "cartpole", "--batch-size", "512", "--dry-run")
    assert yaml.safe_load(out)["cartpole"]["config"]["train_batch_size"] == 512
    _, out, _ = cli("train", "pong-pg", "--batch-size", "60", "--dry-run")
    assert yaml.safe_load(out)["pong-pg"]["config"]["train_batch_episodes"] == 60
