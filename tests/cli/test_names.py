"""Names on the command line: of runs, settings, options, environments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from outplay.experiment import Experiment
from outplay.runs.checkpoint import checkpoints_in
from tests.cli.common import SMALL, Outcome, only_run

TRAIN = ["train", "--env", "CartPole-v1", *SMALL]


def printed(cli: Callable[..., Outcome], *arguments: str) -> dict[str, Any]:
    """What --dry-run prints: experiments by name."""
    code, out, err = cli(*arguments, "--dry-run")
    assert code == 0, err
    found: dict[str, Any] = yaml.safe_load(out)
    return found


# Runs


def test_every_command_takes_what_runs_prints(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    assert cli(*TRAIN, "--timesteps", "40")[0] == 0
    folder = only_run(tmp_path)
    full = cli("runs")[1].splitlines()[1].split()[0]
    assert full == f"CartPole-v1/{folder.name}"  # named after its environment
    for name in (full, "CartPole-v1", "Cart", folder.name, "PPO", folder.name.split("_")[-3][:4]):
        code, out, err = cli("evaluate", name, "--steps", "1")
        assert code == 0, err
        assert str(folder) in out
    for name in (full, "Cart"):
        assert f"resumed from iteration 1 ({folder})" in cli("train", "--resume", name)[2]
    assert cli(*TRAIN, "--init-from", full, "--name", "second", "--timesteps", "40")[0] == 0
    code, _, err = cli("evaluate", "CartPol-v1")
    assert (code, "there is no run at CartPol-v1. Did you mean 'CartPole-v1'?" in err) == (2, True)
    code, _, err = cli("evaluate", "PPO")
    assert (code, f"'PPO' may mean {full}, second/PPO_" in err) == (2, True)


def test_a_run_without_a_name_is_named_after_its_environment(cli: Callable[..., Outcome], custom: None) -> None:
    assert list(printed(cli, "train", "--env", "CartPole-v1")) == ["CartPole-v1"]
    assert list(printed(cli, "train", "--env", "custom_env:CustomEnv")) == ["custom_env.CustomEnv"]
    assert list(printed(cli, "train", "cartpole")) == ["cartpole"]
    assert list(printed(cli, "train", "cartpole", "--env", "Acrobot-v1")) == ["Acrobot-v1"]
    assert list(printed(cli, "train", "cartpole", "--set", "env=Acrobot-v1")) == ["Acrobot-v1"]
    assert list(printed(cli, "train", "cartpole", "--env", "CartPole-v1")) == ["cartpole"]
    assert list(printed(cli, "train", "cartpole", "--env", "Acrobot-v1", "--name", "mine")) == ["mine"]
    assert list(printed(cli, "train", "-f", "custom.yml", "--env", "custom_env:CustomEnv")) == ["custom_env"]
    assert list(printed(cli, "train", "-f", "custom.yml", "--env", "Acrobot-v1")) == ["Acrobot-v1"]


# Settings of the experiment

SET: dict[str, Any] = {
    "name": "mine",
    "description": "one line",
    "env": "Acrobot-v1",
    "run": "A2C",
    "stop": {"timesteps_total": 80.0},
    "confirm": True,
    "show": "episodes",
    "video_at_end": True,
    "checkpoint_freq": 3,
    "checkpoint_every_s": 5.5,
    "checkpoint_at_end": False,
    "keep_checkpoints": 3,
    "loggers": ["csv"],
    "callbacks": ["tests.runs.test_callbacks:Log"],
    "import_from": ["/tmp"],
    "config": {"lr": 0.5, "num_envs": 4},
}


def test_every_setting_of_an_experiment_can_be_set(cli: Callable[..., Outcome]) -> None:
    assert set(SET) == set(Experiment.model_fields)
    arguments = [text for key, value in SET.items() for text in ("--set", f"{key}={json.dumps(value)}")]
    code, out, err = cli("train", "cartpole", *arguments, "--dry-run")
    assert code == 0, err
    ((name, body),) = yaml.safe_load(out).items()
    config = body.pop("config")
    assert {"name": name, **body} == {key: value for key, value in SET.items() if key != "config"}
    assert (config["lr"], config["num_envs"]) == (0.5, 4)


def test_settings_with_dots_and_on_top_of_others(cli: Callable[..., Outcome]) -> None:
    body = printed(cli, "train", "cartpole", "--set", "stop.timesteps_total=500", "--set", "keep_checkpoints=null")
    assert body["cartpole"]["stop"] == {"episode_return_mean": 475.0, "timesteps_total": 500.0}
    assert body["cartpole"]["keep_checkpoints"] is None
    body = printed(cli, "train", "cartpole", "--stop", "training_iteration=3", "--set", "stop.timesteps_total=500")
    assert body["cartpole"]["stop"] == {"training_iteration": 3.0, "timesteps_total": 500.0}
    body = printed(
        cli, "train", "cartpole", "--set", "config.lr=0.5", "--set", "checkpoint_freq=2", "--checkpoint-freq", "7"
    )
    assert (body["cartpole"]["config"]["lr"], body["cartpole"]["checkpoint_freq"]) == (0.5, 7)


def test_loggers_and_checkpoints_of_a_run_and_of_its_resumption(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    kept = ["--set", "keep_checkpoints=1", "--set", "checkpoint_freq=1"]
    code, _, err = cli(*TRAIN, "--stop", "training_iteration=3", "--set", "loggers=[csv]", *kept)
    assert code == 0, err
    folder = only_run(tmp_path)
    assert len((folder / "progress.csv").read_text().splitlines()) == 4
    assert len(checkpoints_in(folder / "checkpoints")) <= 2  # the newest and the best
    assert cli("train", "--resume", "Cart", "--stop", "training_iteration=4", "--set", "loggers=[]")[0] == 0
    assert len((folder / "progress.csv").read_text().splitlines()) == 4
    assert yaml.safe_load((folder / "config.yaml").read_text())["CartPole-v1"]["loggers"] == []
    code, _, err = cli("train", "--resume", "Cart", "--set", "name=other")
    assert (code, "--name is for new runs" in err) == (2, True)


# Options


def test_other_names_of_options(cli: Callable[..., Outcome]) -> None:
    for arguments in (["--algo", "A2C", "--timesteps", "1e3"], ["--algorithm=a2c", "--total-timesteps=1000"]):
        body = printed(cli, "train", "--env", "CartPole-v1", *arguments)["CartPole-v1"]
        assert (body["run"], body["stop"]) == ("A2C", {"timesteps_total": 1000.0})
    for command in ([], ["train"], ["evaluate"], ["settings"]):
        assert cli(*command, "-h") == cli(*command, "--help")
        assert cli(*command, "-h")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env-id", "x"], "no option --env-id; write --env VALUE"),
        (["--n-timesteps", "5"], "no option --n-timesteps; write --timesteps N"),
        (["--total_timesteps", "5"], "no option --total_timesteps; write --timesteps N"),
        (["-n", "5"], "no option -n; write --timesteps N"),
        (["--learning-rate", "5"], "no option --learning-rate; write --config lr=VALUE"),
        (["--learning_rate=5"], "no option --learning_rate; write --config lr=VALUE"),
        (["--gamma", "5"], "no option --gamma; write --config gamma=VALUE"),
        (["--loggers", "csv"], "no option --loggers; write --set loggers=VALUE"),
        (
            ["--tensorboard-log", "x"],
            "no option --tensorboard-log; write --set loggers=VALUE (for example [tensorboard])",
        ),
        (["--save-freq", "5"], "no option --save-freq; write --checkpoint-freq VALUE (in iterations)"),
        (["--use-sde"], "no option --use-sde; Outplay has no such setting: state-dependent exploration"),
        (["--num_workers", "2"], "no option --num_workers; write --num-workers"),
        (["--reume", "x"], "no option --reume. Did you mean --resume?"),
        (["--xyzzy"], "no option --xyzzy; `outplay train --help` lists all"),
        (["--set", "lr=0.1"], "lr is a setting of the algorithm, not of the experiment: write lr: 0.1 under config"),
        (["--set", "model.use_bias=false"], "or --config model.use_bias=false on the command line"),
        (["--set", "loggers"], "--set takes KEY=VALUE, not 'loggers'"),
        (["--set", "loggers=csv"], "loggers must be a list, as [csv, {wandb: {project: poles}}], not 'csv'"),
        (["--set", "stop=5"], "stop must be key: value pairs, not 5"),
        (["--set", "config=5"], "config must be key: value pairs, not 5"),
        (["--set", "logger=[csv]"], "unknown setting 'logger'. Did you mean 'loggers'?"),
        (["--timesteps", "soon"], "stop.timesteps_total must be a number, not 'soon'"),
        (["--config", "checkpoint_freq=3"], "--set checkpoint_freq=3 on the command line"),
        (["--config", "stop={training_iteration: 3}"], "--set stop.training_iteration=3 on the command line"),
        (["--config", "learning_rate=3"], "PPO config: unknown setting 'learning_rate'; in Outplay it is 'lr'"),
    ],
)
def test_what_is_meant_is_told(cli: Callable[..., Outcome], arguments: list[str], message: str) -> None:
    code, out, err = cli("train", "--env", "CartPole-v1", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("outplay: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("CartPole-v1", "'CartPole-v1' is an environment, not a recipe: outplay train --env CartPole-v1"),
        ("ALE/Pong-v5", "'ALE/Pong-v5' is an environment"),
        ("tests.probes:Walk", "'tests.probes:Walk' is an environment"),
        ("custom.yml", "'custom.yml' is a file, not a recipe: outplay train -f custom.yml"),
        ("ppo", "'ppo' is an algorithm, not a recipe: outplay train --env ENV --run PPO"),
        ("pongg", "no recipe 'pongg'. Did you mean 'pong'?"),
    ],
)
def test_what_is_not_a_recipe(cli: Callable[..., Outcome], argument: str, message: str) -> None:
    code, _, err = cli("train", argument)
    assert (code, message in err) == (2, True), err


@pytest.mark.parametrize("text", ["lr: 0.1", "learning_rate: 0.1"])
def test_a_setting_outside_config_in_a_file(cli: Callable[..., Outcome], tmp_path: Path, text: str) -> None:
    (tmp_path / "it.yml").write_text(f"it: {{env: CartPole-v1, {text}}}\n")
    code, _, err = cli("train", "-f", "it.yml")
    assert code == 2
    assert err.startswith("outplay: it.yml, it: ")
    assert "a setting of the algorithm" in err
    assert "under config in a file" in err
