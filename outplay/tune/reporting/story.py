"""What happened in a study, from its journal: curves, copies, and values over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outplay.tune.analysis import ExperimentAnalysis
from outplay.tune.objective import number
from outplay.tune.spaces import Values


@dataclass
class Segment:
    """A part of a trial with the same values: from its start, or from a copy, to the next copy."""

    values: Values
    source: str = ""  # the trial that was copied
    start: int = 0  # iteration
    points: list[tuple[int, float]] = field(default_factory=list)  # iteration, metric

    @property
    def end(self) -> int:
        return self.points[-1][0] if self.points else self.start


@dataclass
class Story:
    """All segments of each trial, by trial id, and the seconds of the whole study."""

    segments: dict[str, list[Segment]]
    seconds: float

    @property
    def has_copies(self) -> bool:
        return any(len(parts) > 1 for parts in self.segments.values())

    @property
    def longest(self) -> int:
        """The most results of a trial."""
        return max((sum(len(part.points) for part in parts) for parts in self.segments.values()), default=0)


def story_of(analysis: ExperimentAnalysis) -> Story:
    """Read the journal once. Values that are not plain are those of the trials that have them."""
    metric = analysis.objective.metric
    ids = {trial.id: trial for trial in analysis.trials}
    found: dict[str, list[Segment]] = {}
    seconds = 0.0
    for entry in analysis.folder.entries():
        seconds = max(seconds, float(entry.get("time") or 0.0))
        trial_id = entry.get("trial", "")
        if entry["event"] == "trial" and trial_id in ids:
            found[trial_id] = [Segment(_plain(entry["values"]))]
        elif entry["event"] == "result" and trial_id in found:
            metrics = entry["metrics"]
            found[trial_id][-1].points.append((int(metrics["training_iteration"]), number(metrics, metric)))
        elif entry["event"] == "retry" and entry.get("from_start") and trial_id in found:
            found[trial_id] = [Segment(found[trial_id][0].values)]
        for copy, decision in entry.get("decisions", {}).items():
            if isinstance(decision, dict) and copy in found:
                start = int(decision["iteration"])
                found[copy].append(Segment(_plain(decision["values"]), str(decision["clone"]), start))
    for trial_id, parts in found.items():
        parts[-1].values = ids[trial_id].values
    return Story(found, seconds)


def _plain(values: dict[str, Any]) -> Values:
    return {name: value for name, value in values.items() if not isinstance(value, dict)}
