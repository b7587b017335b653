"""`outplay evaluate`: partial results, and environments that never end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from outplay.algorithms import evaluating
from tests.cli.common import SMALL, Outcome, only_run

# The first episodes end after 10 steps, the others never. `interrupt`: Ctrl-C in this step of all.
ENDLESS = """
import os, signal
from tests.probes import Walk

class Endless(Walk):
    made = stepped = 0
    interrupt = None

    def __init__(self):
        Endless.made += 1
        super().__init__(10 if Endless.made <= 4 else 10**9)

    def step(self, action):
        Endless.stepped += 1
        if Endless.stepped == self.interrupt:
            os.kill(os.getpid(), signal.SIGINT)
        observation, *_ = super().step(action)
        return observation, 1.0, False, self.steps >= self.length, {}
"""


@pytest.fixture
def endless(cli: Callable[..., Outcome], tmp_path: Path) -> str:
    """A run of an environment most of whose episodes never end."""
    (tmp_path / "endless_env.py").write_text(ENDLESS)
    stop = ["--stop", "training_iteration=1"]
    code, _, err = cli("train", "--env", "endless_env:Endless", *SMALL, *stop)
    assert code == 0, err
    return only_run(tmp_path).name


def playing(made: int, interrupt: int | None = None) -> None:
    """The evaluation makes two environments to probe, then its own."""
    import endless_env  # type: ignore[import-not-found]

    endless_env.Endless.made, endless_env.Endless.stepped = made, 0
    endless_env.Endless.interrupt = None if interrupt is None else interrupt


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_leaves_the_result_of_the_episodes_that_ended(
    cli: Callable[..., Outcome], endless: str, as_json: bool
) -> None:
    playing(made=0, interrupt=5000)
    code, out, err = cli("evaluate", endless, "--trust", *(["--json"] if as_json else []))
    assert (code, err) == (130, "")
    if as_json:
        result = json.loads(out)
        assert result["partial"] is True
        assert (result["episodes"], result["episode_return_mean"]) == (2, 10.0)
    else:
        assert "2 episodes, " in out
        assert "return 10.00 (10.00 to 10.00), length 10.0; partial: stopped by Ctrl-C" in out


def test_ctrl_c_before_an_episode_ended(cli: Callable[..., Outcome], endless: str) -> None:
    playing(made=10, interrupt=5000)
    code, out, _ = cli("evaluate", endless, "--trust")
    assert code == 130
    assert "no episode ended within " in out
    assert out.endswith(" steps; partial: stopped by Ctrl-C\n")


def test_an_environment_that_never_ends_is_cut_off(
    cli: Callable[..., Outcome], endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    playing(made=10)
    code, out, err = cli("evaluate", endless, "--trust", "--max-episode-steps", "30")
    assert code == 0, err
    assert "10 episodes, 300 steps: return 30.00 (30.00 to 30.00)" in out
    assert "10 truncated at 30 steps (--max-episode-steps)" in out
    assert evaluating._EVALUATION_STEPS == 100_000
    monkeypatch.setattr(evaluating, "_EVALUATION_STEPS", 50)
    code, out, err = cli("evaluate", endless, "--trust", "--episodes", "2")
    assert code == 0, err
    assert "2 episodes, 100 steps: return 50.00" in out
    assert "2 truncated at 50 steps" in out
