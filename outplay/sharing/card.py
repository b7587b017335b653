"""A model card: a folder that can be uploaded to a model hub as it is. Nothing is sent anywhere.

README.md            the card, with the metadata that hubs read (YAML front matter)
learning_curve.svg
config.yaml          the settings, to train it again
model.zip            a bundle of the run without replay buffer and videos: to evaluate, to serve, to start from
replay.mp4           the newest video of the run, if it has one
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import outplay
from outplay.errors import RunError
from outplay.files import remove, sync_folder, writing
from outplay.formatting import duration, number
from outplay.runs.bundles import unpacked_checkpoint, write_bundle
from outplay.runs.folder import RunFolder
from outplay.runs.playing import SavedPolicy
from outplay.runs.results import as_path
from outplay.sharing.curve import learning_curve

_VIDEOS = (".mp4", ".webm", ".gif")


@dataclass(frozen=True)
class _Facts:
    """What a card says about a run."""

    run: str
    experiment: str
    state: Mapping[str, Any]  # state.json of the checkpoint
    results: list[dict[str, Any]]  # up to the checkpoint
    evaluation: Mapping[str, Any] | None  # made for the card
    settings: dict[str, Any]

    @property
    def algorithm(self) -> str:
        return str(self.state["algorithm"])

    @property
    def env(self) -> str:
        return str(self.state["env"])


def write_card(
    folder: RunFolder, target: str | Path | None = None, evaluate: Callable[[Path], Mapping[str, Any]] | None = None
) -> Path:
    """Write the card of a run into a new folder; atomically.

    `evaluate` returns metrics of the checkpoint whose folder it is given. The run may train meanwhile: its newest
    checkpoint is copied first, and results, evaluation and model are those of this copy.

    Returns the folder: `target`, by default the name of the run with "-card", in the working directory.
    """
    target = check_new(folder, target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    with writing(target):
        try:
            temporary.mkdir(parents=True)
            write_bundle(folder, temporary / "model.zip", with_replay=False, with_videos=False)
            checkpoint = unpacked_checkpoint(temporary / "model.zip")
            state = SavedPolicy.state_of(checkpoint)
            results, _ = folder.results_until(state["training_iteration"])
            settings = _settings(folder)
            experiment = str(settings.pop("name"))
            evaluation = None if evaluate is None else evaluate(checkpoint)
            facts = _Facts(folder.path.absolute().name, experiment, state, results, evaluation, settings)
            _write_files(folder, facts, temporary)
            temporary.rename(target)
            sync_folder(target.parent)
        finally:
            remove(temporary)
    return target


def check_new(folder: RunFolder, target: str | Path | None) -> Path:
    """The folder for the card. Raises RunError if it exists, or the run has no checkpoint."""
    folder.check_is_run()
    path = as_path(f"{folder.path.absolute().name}-card" if target is None else target)
    if os.path.lexists(path):
        raise RunError(f"{path} exists already; delete it, or choose another folder with -o")
    if not folder.checkpoints():
        raise RunError(f"the run {folder} has no checkpoint yet")
    return path


def _settings(folder: RunFolder) -> dict[str, Any]:
    """The settings of the run, without folders of this machine: where modules and data are, where it records."""
    settings: dict[str, Any] = folder.experiment().model_dump(mode="json", exclude={"import_from"})
    named = settings["config"].get("input")
    is_name = isinstance(named, str) and named.startswith("minari:")
    left_out = ("output",) if is_name else ("output", "input")
    return {**settings, "config": {key: value for key, value in settings["config"].items() if key not in left_out}}


def _write_files(folder: RunFolder, facts: _Facts, target: Path) -> None:
    (target / "config.yaml").write_text(yaml.safe_dump({facts.experiment: facts.settings}, sort_keys=False))
    if (curve := learning_curve(facts.results)) is not None:
        (target / "learning_curve.svg").write_text(curve)
    videos = [path for path in folder.videos_path.glob("*") if path.suffix in _VIDEOS and path.is_file()]
    video = max(videos, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)
    if video is not None:
        shutil.copyfile(video, target / f"replay{video.suffix}", follow_symlinks=False)
    digest = hashlib.sha256((target / "model.zip").read_bytes()).hexdigest()
    (target / "README.md").write_text(_readme(facts, curve is not None, video, digest))


def _readme(facts: _Facts, has_curve: bool, video: Path | None, digest: str) -> str:
    rows = _results(facts)
    parts = [
        f"---\n{yaml.safe_dump(_metadata(facts, rows), sort_keys=False)}---",
        f"# {facts.algorithm} on {_plain(facts.env)}",
        f"A policy for `{_plain(facts.env)}`, trained with the algorithm {facts.algorithm} of "
        f"Outplay {outplay.__version__}, a library for parallel reinforcement learning in Python.",
        "## Results",
        _table(("", "return (mean)", "minimum", "maximum", "episodes"), rows),
        _table(("", ""), _training(facts)),
    ]
    if has_curve:
        parts += ["## Learning curve", "![mean return by environment steps](learning_curve.svg)"]
    if video is not None:
        file = f"replay{video.suffix}"
        shown = f"![an episode]({file})" if video.suffix == ".gif" else f'<video src="{file}" controls></video>'
        parts += ["## Video", shown]
    parts += _use(digest)
    parts += ["## Settings", "<details><summary>config.yaml</summary>", _settings_block(facts), "</details>"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _metadata(facts: _Facts, rows: list[tuple[str, ...]]) -> dict[str, Any]:
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "outplay", facts.algorithm, facts.env]
    metadata: dict[str, Any] = {
        "library_name": "outplay",
        "pipeline_tag": "reinforcement-learning",
        "tags": list(dict.fromkeys(tags)),
    }
    if not rows:
        return metadata
    metric = {
        "type": "mean_reward",
        "name": f"mean return ({rows[0][0]})",
        "value": _headline(facts),
        "verified": False,
    }
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": facts.env, "type": facts.env},
        "metrics": [metric],
    }
    return {**metadata, "model-index": [{"name": facts.algorithm, "results": [result]}]}


def _sources(facts: _Facts) -> list[tuple[str, Mapping[str, Any]]]:
    """(name, metrics) of the returns that are known, the most meaningful first."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    if facts.evaluation is not None:
        found.append(("evaluation for this card", facts.evaluation))
    evaluated = [result["evaluation"] for result in facts.results if isinstance(result.get("evaluation"), dict)]
    found += [("evaluation during training", metrics) for metrics in evaluated[-1:]]
    found += [("training, with exploration", metrics) for metrics in facts.results[-1:]]
    return [(name, metrics) for name, metrics in found if isinstance(metrics.get("episode_return_mean"), (int, float))]


def _headline(facts: _Facts) -> float:
    return float(_sources(facts)[0][1]["episode_return_mean"])


def _results(facts: _Facts) -> list[tuple[str, ...]]:
    return [(name, *_figures(metrics)) for name, metrics in _sources(facts)]


def _figures(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    returns = [metrics.get(f"episode_return_{kind}") for kind in ("mean", "min", "max")]
    episodes = metrics.get("episodes")
    texts = [number(value, 2) if isinstance(value, (int, float)) else "" for value in returns]
    return (*texts, f"{episodes:,}" if isinstance(episodes, int) else "")


def _training(facts: _Facts) -> list[tuple[str, ...]]:
    state = facts.state
    return [
        ("algorithm", facts.algorithm),
        ("environment", f"`{_plain(facts.env)}`"),
        ("observations", f"`{_plain(state['observation_space'])}`"),
        ("actions", f"`{_plain(state['action_space'])}`"),
        ("environment steps", f"{state['timesteps_total']:,}"),
        ("iterations", f"{state['training_iteration']:,}"),
        ("training time", duration(state["time_total_s"])),
        ("seed", str(state["config"].get("seed", ""))),
    ]


def _use(digest: str) -> list[str]:
    return [
        "## How to use it",
        "```sh\noutplay evaluate model.zip --episodes 20\noutplay serve model.zip --port 8000\n"
        "outplay train -f config.yaml --init-from model.zip  # start from its weights\n"
        "outplay unbundle model.zip  # the run itself, in ~/outplay_results\n"
        "outplay train -f config.yaml  # train it again\n```",
        "```python\nfrom outplay.serve import load_policy\n\n"
        'policy = load_policy("model.zip")\nactions = policy.act([observation])\n```',
        "An environment or a model of your own must be importable; `--trust` (in Python: `trust=True`) then allows the "
        f"import. Nothing in `model.zip` is executed. Its SHA-256 hash is `{digest}`.",
    ]


def _settings_block(facts: _Facts) -> str:
    text = yaml.safe_dump({facts.experiment: facts.settings}, sort_keys=False)
    return f"```yaml\n{text.replace('```', '` ` `')}```"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _plain(text: str) -> str:
    """Text of a run inside Markdown: one line, without backticks and tags."""
    return " ".join(text.replace("`", "'").replace("<", "‹").replace(">", "›").split())
