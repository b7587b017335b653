"""The report of a run as one HTML page. It needs no network and no JavaScript."""

from __future__ import annotations

import json
import math
import os
import shlex
from base64 import b64encode
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

import outplay
from outplay.curves import downsampled
from outplay.errors import shortened
from outplay.files import replace_file
from outplay.formatting import counted, duration, number
from outplay.plotting.facts import Facts, facts_of
from outplay.plotting.svg import curve_chart, esc
from outplay.plotting.words import metric_words
from outplay.runs.folder import RunFolder
from outplay.runs.results import results_folder
from outplay.runs.videos import Video

_POINTS = 400  # per curve
_MOST_EMBEDDED = 5_000_000  # bytes of a video
_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}  # what browsers show
_MOST_CHECKPOINTS = 100
_LONGEST_VALUE = 300  # characters of a setting
_RETURN, _STEPS, _EVALUATION = "episode_return_mean", "timesteps_total", "evaluation/episode_return_mean"
_SMALL = ("episode_len_mean", "env_steps_per_s", "curriculum_level")  # small charts beside learner/… and info/…


def write_report(folder: RunFolder, path: Path) -> None:
    """Write the page to a file."""
    replace_file(path, page(facts_of(folder), path))


def page(facts: Facts, path: Path) -> str:
    """The page as text. `path` is where it will be, for links."""
    style = "".join(resources.files("outplay.plotting").joinpath(f).read_text() for f in ("page.css", "report.css"))
    sections = [
        _head(facts),
        _error(facts),
        _learning(facts),
        _charts(facts),
        _video(facts.video, path),
        _two(_stages(facts), _facts(facts)),
        _checkpoints(facts),
        _settings(facts),
        _commands(facts),
    ]
    body = "\n".join(section for section in sections if section)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{esc(facts.name)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}\n"
        f"<p class=note>Outplay {esc(outplay.__version__)}</p>\n</main>\n</body>\n</html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{esc(title)}</h2>\n{content}\n</section>" if content else ""


def _two(one: str, other: str) -> str:
    return f"<div class=two>{one}{other}</div>"


def _value(value: float, decimals: int = 1) -> str:
    return "–" if not math.isfinite(value) else number(value, decimals)


def _whole(value: float) -> str:
    return "–" if not math.isfinite(value) else f"{value:,.0f}"


# The head: how it went.


def _head(facts: Facts) -> str:
    status = facts.status
    state = str(status.get("state", "unknown"))
    evaluated, steps = facts.last(_EVALUATION), facts.last(_STEPS)
    seconds = facts.last("time_total_s")
    shown = shortened(state, 20) + (f" {float(status['progress']):.0%}" if _has_progress(status) else "")
    tiles = [
        ("state", shown, state if state.isalpha() else ""),
        ("mean return", _value(facts.last(_RETURN)), ""),
        *([("mean return (evaluation)", _value(evaluated), "")] if math.isfinite(evaluated) else []),
        ("environment steps", _whole(steps), ""),
        ("training time", duration(seconds) if math.isfinite(seconds) else "–", ""),
        ("steps per second", _whole(facts.speed), ""),
    ]
    cells = "".join(
        f'<div><dt>{esc(label)}</dt><dd class="{esc(kind)}">{esc(text)}</dd></div>' for label, text, kind in tiles
    )
    about = [f"run {facts.name}", f"seed {facts.settings.get('seed')}", facts.started]
    described = facts.about.get("description")
    text = esc(", ".join(part for part in about if part)) + (f"<br>{esc(described)}" if described else "")
    title = f"{facts.algorithm} on {facts.env}"
    return f"<header><h1>{esc(title)}</h1><p>{text}</p></header>\n<dl class=tiles>{cells}</dl>"


def _has_progress(status: dict[str, Any]) -> bool:
    progress = status.get("progress")
    return status.get("state") != "finished" and isinstance(progress, int | float) and 0 <= progress <= 1


def _error(facts: Facts) -> str:
    error = facts.status.get("error")
    return _section("Error", f"<pre class=error>{esc(str(error)[-4000:])}</pre>") if error else ""


# Charts.


def _points(facts: Facts, metric: str) -> list[tuple[float, float]]:
    if metric not in facts.columns or _STEPS not in facts.columns:
        return []
    curve = downsampled(facts.columns[_STEPS], facts.columns[metric], _POINTS)
    return list(zip(curve.x.tolist(), curve.mean.tolist(), strict=True))


def _learning(facts: Facts) -> str:
    curves = {"training": _points(facts, _RETURN), "evaluation": _points(facts, _EVALUATION)}
    title = "Mean return by environment steps"
    # Text of a chart is scaled with it: narrow screens have a chart of their own.
    charts = [
        f'<figure class="{kind}">{svg}</figure>'
        for kind, width, height in (("broad", 1080, 380), ("slim", 440, 320))
        if (svg := curve_chart(curves, metric_words(_STEPS), "mean return", title, width, height, _spread(facts)))
    ]
    if not charts:
        return _section("Learning curve", "<p class=note>No episode has ended yet.</p>")
    window = facts.settings.get("metrics_num_episodes")
    of = f"the last {window} episodes" if isinstance(window, int) else "the last episodes"
    note = f"Training: mean return of {of}; the area is from their minimum to their maximum."
    return _section("Learning curve", f"<p class=note>{esc(note)}</p>\n{''.join(charts)}")


def _spread(facts: Facts) -> list[tuple[float, float, float]]:
    """(steps, minimum, maximum) of returns."""
    names = (_STEPS, "episode_return_min", "episode_return_max")
    if not all(name in facts.columns for name in names):
        return []
    steps, low, high = (facts.columns[name] for name in names)
    is_known = np.isfinite(steps) & np.isfinite(low) & np.isfinite(high)
    lowest, highest = (downsampled(steps[is_known], array[is_known], _POINTS) for array in (low, high))
    return list(zip(lowest.x.tolist(), lowest.low.tolist(), highest.high.tolist(), strict=True))


def _charts(facts: Facts) -> str:
    """Small charts of other metrics. Those that never change are listed as text."""
    names = [name for name in facts.columns if name in _SMALL or name.startswith(("learner/", "info/"))]
    charts, constant = [], []
    for name in sorted(names, key=lambda each: (each in _SMALL, each)):
        points = _points(facts, name)
        if len({value for _, value in points}) < 2:
            constant += [f"{metric_words(name)} {points[0][1]:.4g}"] if points else []
            continue
        title = metric_words(name)
        svg = curve_chart({"value": points}, metric_words(_STEPS), "", f"{title} by environment steps", 420, 230)
        last = f"{points[-1][1]:.4g}"
        charts.append(f"<figure><figcaption>{esc(title)}<span>{esc(last)}</span></figcaption>{svg}</figure>")
    note = f"<p class=note>Constant: {esc(', '.join(constant))}.</p>" if constant else ""
    return _section("Metrics", f"{note}<div class=small>{''.join(charts)}</div>") if charts or note else ""


# Tables.


def _table(rows: Sequence[Sequence[str]], head: Sequence[str] = (), numbers: Sequence[int] = (), kind: str = "") -> str:
    """`rows` are HTML."""

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(f"<{tag}{' class=n' * (i in numbers)}>{cell}</{tag}>" for i, cell in enumerate(row))

    top = f"<thead><tr>{cells(head, 'th')}</tr></thead>" if head else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class=scroll><table class="wide {kind}">{top}<tbody>{body}</tbody></table></div>'


def _stages(facts: Facts) -> str:
    stages = facts.stages()
    if not stages:
        return ""
    rows = "".join(
        f"<tr{' class=part' * ('/' in name)}><td>{esc(name.rpartition('/')[2])}</td>"
        f'<td class=bar><i style="width:{100 * min(share, 1.0):.1f}%"></i></td><td class=n>{share:.1%}</td></tr>'
        for name, _, share in stages
    )
    note = "<p class=note>Share of the time of all iterations.</p>"
    return _section("Stages", f'{note}<table class="wide shares"><tbody>{rows}</tbody></table>')


def _facts(facts: Facts) -> str:
    status, saved = facts.status, facts.saved
    rows: list[tuple[str, Any]] = [
        ("experiment", facts.experiment),
        ("started", facts.started),
        ("last update", str(status.get("updated", "")).replace("T", " ")),
        ("iterations", _whole(facts.last("training_iteration"))),
        ("episodes", _whole(facts.last("episodes_total"))),
        ("stops at", _stop(facts.about.get("stop"))),
        ("machine", status.get("host", "")),
        ("worker processes", _workers(status.get("workers"))),
        ("Outplay", saved.get("outplay", "")),
        ("observations", saved.get("observation_space", "")),
        ("actions", saved.get("action_space", "")),
        ("folder", facts.folder.path.absolute()),
    ]
    known = [(esc(name), esc(shortened(str(value), _LONGEST_VALUE))) for name, value in rows if value not in ("", "–")]
    return _section("Run", _table(known))


def _stop(stop: Any) -> str:
    if not isinstance(stop, dict) or not all(isinstance(value, int | float) for value in stop.values()):
        return ""
    return ", ".join(f"{key} {value:,g}" if value < 1e6 else f"{key} {value:,.0f}" for key, value in stop.items())


def _workers(workers: Any) -> str:
    if not isinstance(workers, dict):
        return ""
    replaced = workers.get("replaced")
    return f"{workers.get('number', '')}" + (f", {replaced} replaced" if replaced else "")


def _checkpoints(facts: Facts) -> str:
    if not facts.checkpoints:
        return _section("Checkpoints", "<p class=note>There is no checkpoint yet.</p>")
    has_evaluation = any(math.isfinite(each.evaluation) for each in facts.checkpoints)
    head = ["checkpoint", "iteration", "steps", "return", *["evaluation"] * has_evaluation, "size", "written"]
    rows = [
        [
            esc(each.name) + (' <span class=star title="best return">★ best</span>' if each.is_best else ""),
            f"{each.iteration:,}",
            _whole(each.steps),
            _value(each.mean_return),
            *[_value(each.evaluation)] * has_evaluation,
            _size(each.size),
            f"{each.written:%Y-%m-%d %H:%M}",
        ]
        for each in facts.checkpoints[: -_MOST_CHECKPOINTS - 1 : -1]
    ]
    more = len(facts.checkpoints) - len(rows)
    note = f"<p class=note>… {more} older</p>" if more else ""
    return _section("Checkpoints", _table(rows, head, range(1, len(head))) + note)


def _size(size: int) -> str:
    """
    >>> _size(950), _size(14_200_000)
    ('1 kB', '14.2 MB')
    """
    return f"{max(1, round(size / 1e3)):,} kB" if size < 1e6 else f"{size / 1e6:,.1f} MB"


def _settings(facts: Facts) -> str:
    changed = facts.changed() if facts.defaults else {}
    first = [(esc(n), esc(_text(v)), esc(_text(facts.defaults.get(n)))) for n, v in changed.items()]
    shown = "<p class=note>All settings have their defaults.</p>"
    if not facts.defaults:
        shown = (
            f"<p class=note>The algorithm {esc(facts.algorithm)} is not installed here: its defaults are unknown.</p>"
        )
    elif first:
        shown = _table(first, ["setting", "value", "default"])
    rest = [(esc(name), esc(_text(value))) for name, value in facts.settings.items() if name not in changed]
    others = f"<details><summary>{counted(len(rest), 'other setting')}</summary>{_table(rest)}</details>"
    return _section("Settings that differ from the defaults" if facts.defaults else "Settings", shown + others)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return shortened(value, _LONGEST_VALUE)
    return shortened(json.dumps(value, default=str, ensure_ascii=False), _LONGEST_VALUE)


def _video(video: Video | None, page_path: Path) -> str:
    if video is None:
        return ""
    kind = _TYPES.get(video.path.suffix.lower())
    caption = f"{video.name}, {video.written:%Y-%m-%d %H:%M}"
    data = _content(video) if kind is not None else None
    if data is not None:
        source = f"data:{kind};base64,{b64encode(data).decode()}"
        is_image = str(kind).startswith("image/")
        shown = f'<img class=film src="{source}" alt="an episode">' if is_image else ""
        shown = shown or f'<video controls loop muted preload="metadata" src="{source}"></video>'
        return _section("Video", f"<p class=note>{esc(caption)}</p>{shown}")
    link = quote(os.path.relpath(video.path.absolute(), page_path.absolute().parent))
    return _section("Video", f'<p><a href="{esc(link)}">{esc(caption)}</a>, {esc(_size(video.bytes))}</p>')


def _content(video: Video) -> bytes | None:
    """The video, if it is small enough for the page."""
    try:
        with video.path.open("rb") as file:
            data = file.read(_MOST_EMBEDDED)
    except OSError:
        return None
    return data if 0 < len(data) < _MOST_EMBEDDED else None


# What to do next.


def _commands(facts: Facts) -> str:
    run = argument_of(facts.folder.path)
    steps = facts.last(_STEPS)
    more = f" --stop timesteps_total={2 * int(steps)}" if math.isfinite(steps) else ""
    needs = [("# the environment or the model is imported: add --trust", "")] if _needs_trust(facts) else []
    with_checkpoint = [
        (f"outplay evaluate {run} --episodes 20", "evaluate the newest checkpoint"),
        (f"outplay evaluate {run} --video game.mp4", "watch it"),
        (f"outplay train --resume {run}{more}", "train further"),
        (f"outplay export {run} policy.onnx", "act without Outplay"),
        (f"outplay plot {run} -o curve.svg", "a figure for a paper"),
    ]
    commands = with_checkpoint if facts.checkpoints else with_checkpoint[-1:]
    lines = [esc(command) + (f"  # {esc(why)}" if why else "") for command, why in [*needs, *commands]]
    return _section("Commands", f"<pre class=commands>{chr(10).join(lines)}</pre>")


def _needs_trust(facts: Facts) -> bool:
    return ":" in facts.env or bool(facts.about.get("import_from"))


def argument_of(folder: Path) -> str:
    """What names a run on the command line: experiment/RUN, or its path if it is not in the default folder."""
    path = folder.absolute()
    is_default = path.parent.parent == results_folder(None).absolute()
    return shlex.quote(f"{path.parent.name}/{path.name}" if is_default else str(path))
