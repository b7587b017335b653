"""Checkpoints of an Algorithm: written into a folder, restored, cloned. `saving` converts what is in them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from outplay.algorithms import curriculum, pending, saving
from outplay.algorithms.atomic import atomically
from outplay.runs.checkpoint import (
    Checkpoint,
    SavedSegments,
    name_of,
    read_checkpoint,
    use_checkpoint,
    write_checkpoint,
)
from outplay.runs.results import new_run_folder, results_folder

if TYPE_CHECKING:
    from outplay.algorithms.algorithm import Algorithm

log = logging.getLogger("outplay")


class Checkpoints:
    """Writes and restores checkpoints of an Algorithm. Remembers which segments of the replay buffer are on disk."""

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._folder: Path | None = None
        self._segments = SavedSegments()

    @property
    def folder(self) -> Path:
        """The folder of a trainer without a run, under ~/outplay_results; made on first use."""
        if self._folder is None:
            kind, env = type(self._algorithm).__name__, self._algorithm.env_spec.name
            self._folder = new_run_folder(results_folder(None), "python", kind, env)
        return self._folder

    def save(self, parent: Path | None) -> Path:
        """Write a checkpoint into `parent`, by default `folder`/checkpoints. Returns its path."""
        algorithm = self._algorithm
        parent = self.folder / "checkpoints" if parent is None else parent
        algorithm._drain()
        if algorithm.recording is not None:
            algorithm.recording.flush()  # a resumed run records what comes after
        known = self._segments.present()
        checkpoint = saving.make_checkpoint(algorithm, known)
        if not checkpoint.state["exact"] and not algorithm.inexact:
            algorithm.inexact = "an episode is too long to be replayed"
            env = algorithm.env_spec.name
            log.warning("environment %r: %s, so a resumed run will not be exact", env, algorithm.inexact)
        path = parent / name_of(algorithm.iteration)
        self._segments = write_checkpoint(checkpoint, path, self._segments, known)
        return path

    def restore(self, checkpoint: str | Path) -> None:
        """See `Algorithm.restore`."""
        use_checkpoint(checkpoint, self._restore)

    def _restore(self, path: Path) -> None:
        saved = read_checkpoint(path)
        saving.check_fits(self._algorithm, saved.state)
        atomically(self._algorithm, "restoring", lambda: self._load(path, saved))

    def _load(self, path: Path, saved: Checkpoint) -> None:
        algorithm = self._algorithm
        states, are_segments_valid = saving.restore_state(algorithm, saved)
        algorithm.training_workers.restart_from(curriculum.states_on(algorithm.config, algorithm.level, states))
        self._segments = SavedSegments(path, saved.hashes) if are_segments_valid else SavedSegments()

    def clone(self, checkpoint: str | Path) -> None:
        """See `Algorithm.clone_from`."""
        if self._algorithm.recording is not None:
            self._algorithm.recording.flush()
        atomically(self._algorithm, "cloning", lambda: self._clone(checkpoint))

    def _clone(self, checkpoint: str | Path) -> None:
        algorithm = self._algorithm
        kept = ("iteration", "timesteps", "seconds", "_returns", "_lengths", *pending.STATE)
        counters = {name: getattr(algorithm, name) for name in kept}
        total = algorithm.episodes.total
        recorded = None if algorithm.recording is None else algorithm.recording.state()
        self.restore(checkpoint)
        if algorithm.recording is not None and recorded is not None:
            algorithm.recording.load(recorded)  # of this run, not of the other
        for name, value in counters.items():
            setattr(algorithm, name, value)
        algorithm.episodes.total = total

    def load_weights(self, checkpoint: str | Path) -> None:
        """See `Algorithm.load_weights`."""
        algorithm = self._algorithm
        saved = use_checkpoint(checkpoint, read_checkpoint)
        saving.check_spaces(algorithm, saved.state)
        atomically(algorithm, "loading weights", lambda: saving.restore_weights(algorithm, saved))
