"""Writes docs/configuration.md from the settings' own classes. `make docs` runs it."""

from __future__ import annotations

from pathlib import Path

from outplay.registry import algorithms
from outplay.runs import reference
from outplay.runs.experiments import METRICS

HEAD = """# Configuration

<!-- Written by docs/make_configuration.py from the classes themselves: run `make docs` after a change of them. -->

A setting of the algorithm is given in `config` of an experiment file, in `config={…}` of the Python API, or as
`--config KEY=VALUE` on the command line, where dots lead into nested settings (`--config model.fcnet_hiddens=[32,32]`).
A setting of the experiment is given beside `config` in the file, or as `--set KEY=VALUE` (`--set loggers=[csv]`).

What is unknown is refused, with the nearest valid name. Names of Stable-Baselines3, RLlib, CleanRL and Tianshou
(`learning_rate`, `n_epochs`, `num_env_runners`) are answered with Outplay's name.

`outplay settings PPO` prints these tables for one algorithm, `outplay train … --dry-run` all settings of a run.
"""


def main() -> None:
    (Path(__file__).parent / "configuration.md").write_text(text())


def text() -> str:
    parts = [HEAD]
    experiment = table(reference.experiment_group())
    parts.append("## Experiments\n\nWhat stands in an experiment file beside `config`.\n\n" + experiment)
    metrics = ", ".join(f"`{name}`" for name in METRICS)
    parts.append(
        f"A run stops when any condition in `stop` is reached. The metrics are {metrics}, and `learner/…` and "
        "`evaluation/…` as they stand in `metrics.jsonl`.\n"
    )
    for group in reference.shared_groups():
        parts.append((f"### `{group.prefix}`" if group.prefix else "## All algorithms") + "\n\n" + table(group))
    for name in algorithms.shipped:
        for group in reference.algorithm_groups(name):
            head = f"## {name}\n\nIts own settings, and where its defaults differ."
            if group.prefix:
                head = f"### `{group.prefix}` of {name}\n\n{group.about}"
            parts.append(f"{head}\n\n{table(group)}")
    return "\n".join(parts)


def table(group: reference.Group) -> str:
    lines = ["| setting | default | takes | |", "| --- | --- | --- | --- |"]
    for row in group.rows:
        default = "–" if not row.default else "below" if row.default == "below" else f"`{row.default}`"
        lines.append(f"| `{row.name}` | {default} | {row.takes} | {row.description} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
