"""Commands in a real terminal: the live panel, messages above it, Ctrl-C and Ctrl-Z."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.common import SMALL, only_run
from tests.cli.terminal import Screen, Terminal

OUTPLAY = f"{sys.executable} -m outplay"
SLOW = "--env tests.probes:Noisy --config env_config.sleep=0.01 --config train_batch_size=4000 --num-workers 0"


def frames(screen: Screen) -> tuple[int, int]:
    """The number of upper and lower borders of panels."""
    return screen.text.count("╭"), screen.text.count("╰")


def test_a_panel_is_alive_and_leaves_the_terminal_clean(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.type(f"{OUTPLAY} train {SLOW}\n")
        terminal.wait_for("iteration 1: collect 2 s")  # within an iteration of 40 s
        assert not terminal.screen.is_cursor_visible
        above, _, panel = terminal.screen.text.partition("╭")
        for noise in ("made, says Python", "compiled, says C", "reset, says Python", "UserWarning: this is old"):
            assert (above.count(noise), panel.count(noise)) == (1, 0)
        terminal.type("\n\n:\n")  # not echoed, which would move the panel
        terminal.wait_for("iteration 1: collect 3 s")
        assert frames(terminal.screen) == (1, 1)

        terminal.type("\x1a")
        terminal.wait_for("Stopped")
        assert frames(terminal.screen) == (0, 0)
        assert terminal.screen.is_cursor_visible
        terminal.type("fg\n")
        terminal.wait_for(lambda screen: frames(screen) == (1, 1) and not screen.is_cursor_visible)

        terminal.type("\x03")
        terminal.wait_for("the last one: stopping")
        message = "stopping after this iteration, with a checkpoint; press Ctrl-C again to stop now"
        assert message in terminal.screen.text.partition("╭")[0]
        terminal.type("\x03")
        terminal.wait_for("stopping now:")
        terminal.type("echo code=$?\n")
        terminal.wait_for("code=130")
        terminal.type("stty -a\n")
        terminal.wait_for(" echo ")
        assert frames(terminal.screen) == (1, 1)
        assert terminal.screen.is_cursor_visible
        after = terminal.screen.text.rpartition("╯")[2].replace("\n", "")
        run = only_run(tmp_path).name
        assert (
            "stopping now: iteration 1 is lost; there is no checkpoint; to resume: "
            f"outplay train --resume {run} --trust"
        ) in after


@pytest.mark.slow
def test_a_run_to_its_end_in_a_narrow_and_low_terminal(tmp_path: Path) -> None:
    with Terminal(tmp_path, columns=50, lines=12) as terminal:
        terminal.type(f"{OUTPLAY} train --env CartPole-v1 {' '.join(SMALL)} --stop training_iteration=50\n")
        terminal.wait_for("to train further:")
        assert frames(terminal.screen) == (1, 1)
        assert "training_iteration reached 50" in terminal.screen.text.partition("╰")[0]
        assert terminal.screen.is_cursor_visible


@pytest.mark.slow
def test_a_killed_command_shows_the_cursor(tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.type(f"{OUTPLAY} train {SLOW}\n")
        terminal.wait_for("iteration 1: collect")
        os.kill(json.loads((only_run(tmp_path) / "status.json").read_text())["pid"], signal.SIGKILL)
        terminal.wait_for(lambda screen: screen.is_cursor_visible and "Killed" in screen.text)
        terminal.type("stty -a\n")
        terminal.wait_for(" echo ")


@pytest.mark.slow
def test_warnings_of_the_package_are_above_the_panel(tmp_path: Path) -> None:
    """A worker that is killed is replaced, with a warning."""
    crashing = f"--env tests.probes:Crashing --config env_config.folder={tmp_path} --num-workers 1"
    with Terminal(tmp_path, columns=120) as terminal:
        terminal.type(f"{OUTPLAY} train {crashing} --config num_envs=2 --config train_batch_size=2000\n")
        terminal.wait_for("iteration 2")
        (tmp_path / "crash").touch()
        terminal.wait_for("WARNING: worker 0 died and is replaced")
        (tmp_path / "crash").unlink()
        terminal.wait_for(lambda screen: "1 restarted" in screen.text or "2 restarted" in screen.text)
        assert "WARNING: worker 0" in terminal.screen.text.partition("╭")[0]
        assert frames(terminal.screen) == (1, 1)
        terminal.type("\x03")
        terminal.wait_for("to resume: outplay train --resume")
        assert frames(terminal.screen) == (1, 1)


@pytest.mark.slow
def test_an_evaluation_shows_its_progress_and_a_partial_result(tmp_path: Path) -> None:
    """Episodes of 10 or 10,000 steps: after Ctrl-C those that ended count."""
    (tmp_path / "uneven.py").write_text(
        "import time\n"
        "from tests.probes import Walk\n"
        "class Uneven(Walk):\n"
        "    made = 0\n"
        "    def __init__(self):\n"
        "        Uneven.made += 1\n"
        "        super().__init__(10 if Uneven.made % 2 else 100_000, 0.001)\n"
    )
    small = "--config num_envs=2 --config train_batch_size=20 --num-workers 0"
    with Terminal(tmp_path, columns=120) as terminal:
        terminal.type(f"{OUTPLAY} train --env uneven:Uneven {small} --stop training_iteration=1 --json | wc -l\n")
        terminal.wait_for("\n1")
        run = only_run(tmp_path).name
        terminal.type(f"clear; {OUTPLAY} evaluate {run} --trust\n")
        terminal.wait_for("evaluating: episode 6 of 10")
        assert "mean return" in terminal.screen.text
        terminal.type("\x03")
        terminal.wait_for("partial: stopped by Ctrl-C")
        text = terminal.screen.text
        assert "PPO on uneven:Uneven, iteration 1" in text
        assert "5 episodes, " in text
        assert "evaluating" not in text
        assert terminal.screen.is_cursor_visible
        terminal.type("echo code=$?\n")
        terminal.wait_for("code=130")
