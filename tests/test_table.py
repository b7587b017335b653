"""benchmarks/table.py: which cells it trains, what it records, and that an interrupted cell is continued."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import table

    return table


def result(cell: str, seed: int, value: float, **settings: Any) -> dict[str, Any]:
    return {
        "cell": cell, "seed": seed, "steps": 9, "return": value, "last_100": value, "curve": [[9, value]],
        "machine": "some CPU", "date": "2026-11-18", "settings": settings,
    }  # fmt: skip


def test_the_settings_of_all_cells_are_shipped_ones(table: ModuleType) -> None:
    from table_cells import CELLS

    assert len({cell.name for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        assert table.all_settings(cell)  # raises if a recipe is missing, or is for another environment or algorithm


def test_cells_are_chosen_by_environment_algorithm_and_steps(table: ModuleType) -> None:
    def names(*parts: str) -> list[str]:
        return [cell.name for cell in table.chosen(list(parts))]

    assert names("CartPole-v1") == ["CartPole-v1/PPO/100k", "CartPole-v1/DQN/50k", "CartPole-v1/A2C/500k"]
    assert names("LunarLander-v3/PPO") == ["LunarLander-v3/PPO/300k", "LunarLander-v3/PPO/1M"]
    assert names("LunarLander-v3/PPO/1M", "Pong-v5/DQN") == ["LunarLander-v3/PPO/1M", "ALE/Pong-v5/DQN/2.5M"]
    assert names("*-v5/SAC") == [f"{robot}-v5/SAC/1M" for robot in ("HalfCheetah", "Hopper", "Walker2d")]
    assert names("Cartpole") == []
    assert names() == [cell.name for cell in table.CELLS]


def test_only_results_with_the_present_settings_count(table: ModuleType) -> None:
    recorded = result("CartPole-v1/PPO/100k", 0, 500.0, lr=1e-3, model={"use_bias": True})
    assert table.is_current(recorded, {"lr": 1e-3, "model": {"use_bias": True, "new": 1}, "new": None})
    assert not table.is_current(recorded, {"lr": 2e-3, "model": {"use_bias": True}})
    assert not table.is_current(recorded, {"lr": 1e-3, "model": {"use_bias": False}})


def test_a_line_that_was_cut_is_left_out_and_the_next_one_stands_alone(table: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    table.append(path, {"seed": 0})
    with path.open("a") as file:
        file.write('{"seed": 1, "ret')
    table.append(path, {"seed": 2})
    assert [line["seed"] for line in table.read(path)] == [0, 2]


def test_a_row_has_the_mean_and_each_seed(table: ModuleType, tmp_path: Path) -> None:
    from table_pages import write_table

    name = "Hopper-v5/PPO/1M"
    write_table([result(name, 0, 2000.0), result(name, 1, 3000.0)], tmp_path / "TABLE.md", tmp_path)
    (row,) = [line for line in (tmp_path / "TABLE.md").read_text().splitlines() if line.startswith("| Hopper")]
    assert [cell.strip() for cell in row.split("|")[3:10]] == [
        "1M", "**2,500**", "2,000, 3,000", "2,500", "2,410", "RL Zoo", "yes",
    ]  # fmt: skip


def test_an_interrupted_cell_is_continued(table: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from table_cells import Cell

    from outplay import Run

    cell = Cell("CartPole-v1", "PPO", 5_000, 500.0, "RL Zoo", episodes=2)
    monkeypatch.setattr(table, "EVERY_S", 1e-9)  # a checkpoint after each iteration
    whole = table.train(cell, 0, tmp_path / "whole", is_gpu=False)
    assert whole["steps"] == 4_096  # two iterations of 2,048 steps fit

    step, taken = Run.step, []

    def interrupted(run: Run) -> Any:
        if taken:
            raise KeyboardInterrupt
        taken.append(step(run))

    with monkeypatch.context() as patch:
        patch.setattr(Run, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.train(cell, 0, tmp_path / "parts", is_gpu=False)
    rest = table.train(cell, 0, tmp_path / "parts", is_gpu=False)
    assert {**rest, "train_s": 0} == {**whole, "train_s": 0}
    assert len(rest["curve"]) == 2
    assert json.loads(json.dumps(rest)) == rest
