"""benchmarks/TABLE.md and the curves of the documents, from the results of benchmarks/table.py."""

from __future__ import annotations

import statistics
from os.path import relpath
from pathlib import Path
from typing import Any

from figures import label, panels
from table_cells import CELLS, Cell, thousands

HEAD = """# Returns beside published ones

Written by `python benchmarks/table.py`, which trains each cell with shipped defaults or a shipped recipe for the
published number of steps, and evaluates the final policy without exploration on seeds that training does not use.
**Ours** is the mean over the seeds. *Reached*: it is at least the published return. *Training* is the mean return of
the last 100 training episodes, with exploration. The batch of random actions that fits the normaliser of observations
before the first iteration (`normalize_observations`) is not counted.

Recipes were tuned on these environments, most of them with seeds that are reported here, and the best of a few
settings was kept. So their means are somewhat too high, most of all those of one or two seeds. These seeds were not
used to choose settings: 2 to 4 of `halfcheetah-a2c`, 3 and 4 of `mountaincar-dqn` and of `mountaincar-continuous-sac`,
1 and 2 of `lunarlander-dqn` and of `bipedalwalker-a2c`.
The batch size, clip range and epochs of `lunarlander-continuous` were chosen on seeds 10 to 12, and the settings of
`lunarlander-continuous-td3` and `acrobot-qrdqn` on seed 10. SAC and TD3 on MuJoCo and BipedalWalker, and SAC on
LunarLanderContinuous, have the first settings that were tried.

Atari: 2.5M steps of 4 frames each. RL Zoo trained four times as long. PPO and A2C sample their actions in the
evaluation, as in RL Zoo's. The recipes of Breakout have the first settings that were tried. The Atari runs shared one
machine and its GPU, each on 5 to 8 of the 16 cores.

SAC and TD3 learn in bfloat16 on the CPUs below (`model.precision: auto`), and in float32 on a GPU.

Sources: **RL Zoo**, `benchmark.md` of Stable-Baselines3's RL Zoo (one run per figure, evaluated without exploration
except on Atari, for Gymnasium's older versions of the environments: v2 of LunarLander, v3 of MuJoCo); **SLM-Lab**,
`docs/BENCHMARKS.md` of SLM-Lab 5 (four runs, last 100 training episodes); **Tianshou**, `examples/mujoco/README.md`
(ten runs, highest evaluation on the way).

"""


COLUMNS = [
    *("environment", "algorithm", "steps", "ours", "seeds", "training", "published", "source", "reached", "settings"),
    "machine",
]


def write_table(results: list[dict[str, Any]], path: Path, plots: Path) -> None:
    """Write the table of all cells that have results, and name those that have none. Show the curves in `plots`."""
    by_cell = {cell.name: [r for r in results if r["cell"] == cell.name] for cell in CELLS}
    lines = ["| " + " | ".join(COLUMNS) + " |", "| " + " | ".join(["---"] * len(COLUMNS)) + " |"]
    machines: list[str] = []
    for cell in CELLS:
        if by_cell[cell.name]:
            lines.append(_row(cell, by_cell[cell.name], machines))
    text = HEAD + "\n".join(lines) + "\n"
    missing = [f"{cell.env} {cell.algorithm} ({thousands(cell.steps)})" for cell in CELLS if not by_cell[cell.name]]
    if machines:
        text += "\nMachines: " + "; ".join(f"{chr(65 + i)}: {name}" for i, name in enumerate(machines)) + ".\n"
    if missing:
        text += "\nNot yet measured with the present settings: " + ", ".join(missing) + ".\n"
    figures = [(env, plots / _figure(env)) for env in dict.fromkeys(cell.env for cell in CELLS)]
    if drawn := [(env, figure) for env, figure in figures if figure.exists()]:
        text += "\n## Curves\n\nMean return of the last 100 training episodes; dashed: the published return.\n"
        text += "".join(f"\n![Curves of {env}]({relpath(figure, path.parent)})\n" for env, figure in drawn)
    path.write_text(text)


def _figure(env: str) -> str:
    """
    >>> _figure("ALE/Pong-v5")
    'pong.png'
    """
    return f"{env.removeprefix('ALE/').rpartition('-')[0].lower()}.png"


def _row(cell: Cell, found: list[dict[str, Any]], machines: list[str]) -> str:
    returns = [r["return"] for r in found]
    mean = statistics.mean(returns)
    used = {}
    for r in found:
        if r["machine"] not in machines:
            machines.append(r["machine"])
        used[chr(65 + machines.index(r["machine"]))] = r["date"]
    places = ", ".join(f"{letter} ({date})" for letter, date in used.items())
    source = f"{cell.source}: {cell.variant}" if cell.variant else cell.source
    values = [
        cell.env,
        cell.algorithm,
        thousands(cell.steps),
        f"**{number(mean)}**",
        ", ".join(map(number, returns)),
        number(statistics.mean(r["last_100"] for r in found)),
        f"{cell.published:,g}".replace("-", "−"),
        source,
        "yes" if mean >= cell.published else "no",
        cell.settings,
        places,
    ]
    return "| " + " | ".join(values) + " |"


def number(value: float) -> str:
    """
    >>> number(12138.8), number(-76.64), number(20.99)
    ('12,139', '−76.6', '21.0')
    """
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}").replace("-", "−")


def draw(results: list[dict[str, Any]], folder: Path) -> None:
    """One figure per environment: a panel for each cell, with the curve of each seed and the published return."""
    folder.mkdir(parents=True, exist_ok=True)
    for env in dict.fromkeys(cell.env for cell in CELLS):
        cells = [cell for cell in CELLS if cell.env == env and any(r["cell"] == cell.name for r in results)]
        if not cells:
            continue
        with panels(folder / _figure(env), len(cells), 2.6 * len(cells), 2.3) as axes:
            for axis, cell in zip(axes, cells, strict=True):
                for r in results:
                    if r["cell"] == cell.name:
                        axis.plot([p[0] / 1000 for p in r["curve"]], [p[1] for p in r["curve"]], linewidth=1)
                axis.set_title(f"{cell.algorithm}, {thousands(cell.steps)}", fontsize=9)
                label(axis, cell.published, y=env if axis is axes[0] else "")
