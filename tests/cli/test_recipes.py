"""The recipes that ship."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.common import Outcome, only_run


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
    assert "resumed from iteration 10" in err
    batch, reward, shown = re.findall(r"batch (\d+), reward (-?\d+), running mean (-?\d+\.\d\d)", out)[0]
    assert batch == "11"
    assert float(shown) == pytest.approx(0.99 * mean + 0.01 * float(reward), abs=0.006)
