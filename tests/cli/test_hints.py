"""What a run suggests when it ends: commands that work when they are pasted."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import outplay
from outplay.cli.hints import hints
from tests import probes
from tests.cli.common import SMALL, Outcome, only_run
from tests.runs.common import make

ONCE = [*SMALL, "--stop", "training_iteration=1"]


def commands(out: str) -> dict[str, list[str]]:
    """The arguments of each suggested command, by its purpose."""
    found = [line.partition(": outplay ") for line in out.splitlines() if ": outplay " in line]
    return {purpose: shlex.split(command) for purpose, _, command in found}


@pytest.mark.parametrize("folder", [[], ["--results-dir", "my results; it's"]])
def test_what_a_finished_run_suggests_works(cli: Callable[..., Outcome], tmp_path: Path, folder: list[str]) -> None:
    code, out, err = cli("train", "--env", "CartPole-v1", "--name", "my poles", *ONCE, *folder)
    assert code == 0, err
    found = commands(out)
    assert set(found) == {"to watch it", "to train further"}
    code, out, err = cli(*found["to watch it"])
    assert code == 0, err
    assert (tmp_path / "game.mp4").exists()
    code, out, err = cli(*found["to train further"])
    assert code == 0, err
    assert "resumed from iteration 1" in err
    assert "iteration 2  steps 80" in out


def test_a_suggestion_names_this_run_and_not_a_newer_one(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    out = cli("train", "--env", "CartPole-v1", *ONCE)[1]
    first = only_run(tmp_path)
    assert cli("train", "--env", "CartPole-v1", *ONCE)[0] == 0
    assert f"({first}/checkpoints/" in cli(*commands(out)["to watch it"])[1]


def test_an_environment_of_a_module_in_another_folder_is_found_again(
    cli: Callable[..., Outcome], tmp_path: Path, custom: None
) -> None:
    (tmp_path / "elsewhere").mkdir()
    for name in ("custom_env.py", "custom.yml"):
        (tmp_path / name).rename(tmp_path / "elsewhere" / name)
    code, out, err = cli("train", "-f", "elsewhere/custom.yml", *SMALL)
    assert code == 0, err
    sys.modules.pop("custom_env")
    sys.path[:] = [path for path in sys.path if "elsewhere" not in path]
    found = commands(out)
    assert set(found) == {"to train further"}  # it does not say that it can render
    code, out, err = cli(*found["to train further"])
    assert code == 0, err
    assert "iteration 4" in out


def test_a_run_that_was_stopped_suggests_to_resume(cli: Callable[..., Outcome], tmp_path: Path) -> None:
    run = make(tmp_path / "results", env="CartPole-v1")
    run.train(lambda _: run.request_stop("stopped"))
    assert [hint.partition(":")[0] for hint in hints(run)] == ["to watch it", "to resume"]
    code, out, err = cli(*commands("\n".join(hints(run)))["to resume"])
    assert code == 0, err
    assert "iteration 4" in out


def test_the_engine_is_part_of_the_command(cli: Callable[..., Outcome]) -> None:
    outplay.shutdown()
    code, out, err = cli("train", "--env", "CartPole-v1", "--engine", "inline", *ONCE)
    assert code == 0, err
    outplay.shutdown()
    command = commands(out)["to train further"]
    assert command[command.index("--engine") + 1] == "inline"


def test_watching_is_suggested_only_where_it_is_possible(
    cli: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(commands(cli("train", "--env", "tests.probes:Walk", *ONCE)[1])) == {"to train further"}
    for module in ("imageio_ffmpeg", "pygame"):
        with monkeypatch.context() as hidden:
            hidden.setitem(sys.modules, module, None)
            assert set(commands(cli("train", "--env", "CartPole-v1", *ONCE)[1])) == {"to train further"}


def test_without_a_checkpoint_nothing_is_suggested(tmp_path: Path) -> None:
    run = make(tmp_path, env=probes.Walk, checkpoint_at_end=False)
    run.train()
    assert hints(run) == []
