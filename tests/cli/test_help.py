"""Help, lists of settings, and completion in the shell."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from outplay.algorithms import find_algorithm
from outplay.cli import app
from outplay.experiment import Experiment
from outplay.registry import algorithms, env_ids
from outplay.runs.experiments import METRICS
from outplay.runs.reference import rows, settings_of
from outplay.settings import has_setting
from tests.cli.common import Outcome

COMMANDS = [command.name or "" for command in (*app.registered_commands, *app.registered_groups)]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_descriptions_of_commands_are_not_cut(
    cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = cli("--help")
    assert code == 0
    assert "..." not in out.split("\n", 1)[1]
    text = " ".join(out.split())
    for command in COMMANDS:
        assert f" {command} " in text
        whole = cli(command, "--help")[1].split("\n\n")[1].strip()
        assert " ".join(whole.split()).split(":")[0].rstrip(".") in text  # the short description starts as the long one
    assert "--install-completion" in text
    assert max(map(len, out.splitlines())) <= columns


@pytest.mark.parametrize("columns", [80, 120])
def test_an_example_is_a_line_that_runs(
    cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = [line.strip() for line in cli("train", "--help")[1].splitlines()]
    examples = [line.split()[1:] for line in lines if line.startswith("outplay ")]
    assert ["train", "cartpole"] in examples
    assert len(examples) == 4
    for example in examples:
        if "-f" not in example and "--resume" not in example:
            assert cli(*example, "--dry-run")[0] == 0


# Settings


@pytest.mark.parametrize("algorithm", algorithms.shipped)
def test_all_settings_of_an_algorithm_are_listed_once(cli: Callable[..., Outcome], algorithm: str) -> None:
    code, out, _ = cli("settings", algorithm.lower())
    assert code == 0
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    config = find_algorithm(algorithm).Config
    assert len(listed) == len(set(listed))
    assert all(has_setting(config, name) for name in listed)
    assert {row.name for row in rows(config)} == {name.split(".")[0] for name in listed}
    assert f"  {'lr':<10}"[:5] in out
    defaults = {row.name: row.default for group in settings_of(algorithm) for row in group.rows if not group.prefix}
    assert float(defaults["lr"]) == config.model_fields["lr"].default


def test_nested_settings_that_are_off_by_default_are_listed() -> None:
    nested = {group.prefix: [row.name for row in group.rows] for group in settings_of("PPO")}
    assert nested["intrinsic_reward"] == ["type", "coefficient", "gamma", "embedding_size"]


def test_settings_of_experiments_and_metrics_are_listed(cli: Callable[..., Outcome]) -> None:
    code, out, _ = cli("settings")
    assert code == 0
    listed = [line.split()[0] for line in out.splitlines() if line.startswith("  ")]
    assert listed == [*Experiment.model_fields, *METRICS]
    assert "outplay settings PG | A2C | PPO | DQN" in out
    code, _, err = cli("settings", "PPPO")
    assert (code, "no algorithm 'PPPO'. Did you mean 'PPO'?" in err) == (2, True)


def test_on_a_terminal_the_list_is_as_wide_as_the_terminal() -> None:
    mine, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm"}
    command = [sys.executable, "-m", "outplay", "settings"]
    with subprocess.Popen(command, env=environment, stdout=theirs) as running:
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(mine, 65536):
                text += piece
        except OSError:  # the other side is closed
            pass
    os.close(mine)
    assert running.returncode == 0
    lines = text.decode().splitlines()
    settings = lines[: lines.index("set with --set KEY=VALUE, or beside config in a file")]
    assert 60 < max(map(len, settings)) <= 80


# Completion


def complete(cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    with monkeypatch.context() as patch:
        patch.setenv("_OUTPLAY_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", words)
        patch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        code, out, err = cli()
    assert (code, err) == (0, "")
    return out.split()


def test_completion_of_names(cli: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = tmp_path / "results" / "poles" / "PPO_CartPole-v1_3fa9c1_2026-11-15_12-00-00"
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    for words, expected in {
        "outplay tra": ["train"],
        "outplay train cartpole-d": ["cartpole-dqn"],
        "outplay train --run P": ["PG", "PPO", "PQN"],
        "outplay settings DQ": ["DQN"],
        "outplay train --env Acro": ["Acrobot-v1"],
        "outplay train --env ALE/Breako": ["ALE/Breakout-v5"],
        "outplay check-env PongD": ["PongDifference"],
        "outplay train --engine i": ["inline"],
        "outplay evaluate ": ["poles"],
        "outplay plot other p": ["poles"],
        "outplay report poles/": [f"poles/{run.name}"],
        "outplay train --resume p": ["poles"],
        "outplay train --init-from poles/": [f"poles/{run.name}"],
        "outplay evaluate --results-dir nowhere p": [],
    }.items():
        assert complete(cli, monkeypatch, words) == expected, words


def test_the_ids_that_are_read_from_files_are_registered() -> None:
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    ids = env_ids()
    known = set(gymnasium.registry)
    assert {"CartPole-v1", "LunarLander-v3", "ALE/Pong-v5", "PongDifference"} <= set(ids)
    assert [name for name in ids if name not in known] == ["PongDifference"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_in_a_real_shell() -> None:
    """As bash does it: the function that the completion script defines fills COMPREPLY."""
    script = """
        eval "$(_OUTPLAY_COMPLETE=source_bash outplay)"
        read -r _ _ _ _ function _ <<< "$(complete -p outplay)"
        COMP_WORDS=(outplay train cartpole-d)
        COMP_CWORD=2
        $function outplay
        echo "${COMPREPLY[@]}"
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["cartpole-dqn"], done.stderr
