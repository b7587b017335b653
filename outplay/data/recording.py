"""Recording: experience is written to Parquet files, so that a run that is killed and resumed has no row twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from outplay.data.columns import Rows, columns_of, concatenated, count
from outplay.data.transitions import EPISODE, NUMBERING, run_number
from outplay.files import remove, writing

FILE_ROWS = 16_384  # rows of a file, at least, unless a checkpoint is written before
_NAME = re.compile(r"experience-(\d{6,})\.parquet")


class Recording:
    """The experience of one run, as numbered files in a folder of its own inside `output`.

    Rows wait in memory until there are enough for a file, or until a checkpoint is written: `flush`. A checkpoint has
    the number of files so far. A resumed run removes the files after them, and records those steps again.
    """

    def __init__(self, output: str | Path, name: str, metadata: Mapping[str, str]) -> None:
        """`name`: of the folder; made unique unless a run or a checkpoint names it (`continues`)."""
        self.output, self.metadata = Path(output), dict(metadata)
        self.name, self.is_named = name, False
        self.files = 0
        self.numbering = NUMBERING  # of runs; one that is resumed keeps its own
        self._waiting: list[Rows] = []
        self._is_ready = False  # whether the folder has exactly the files before `files`

    @property
    def folder(self) -> Path:
        return self.output / self.name

    def continues(self, name: str) -> None:
        """Use this folder, also if it exists: it belongs to this run."""
        self.name, self.is_named = name, True

    def add(self, rows: Rows) -> None:
        if count(rows):
            self._waiting.append(rows)

    def start_iteration(self) -> None:
        """Remove the files after the checkpoint that was restored."""
        if self._is_ready or not (self.is_named and self.folder.is_dir()):
            return
        for path in self.folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if (match is not None and int(match[1]) >= self.files) or path.name.endswith(".part"):
                with writing(path, "removed"):
                    remove(path)
        self._is_ready = True

    def end_iteration(self) -> None:
        """Write a file if there are enough rows."""
        if sum(map(count, self._waiting)) >= FILE_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write all rows that wait."""
        from outplay.data.parquet import write_file

        if not self._waiting:
            return
        if not self.is_named:
            self._make_folder()
        self.start_iteration()
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        rows = concatenated(self._waiting)
        rows = {**rows, EPISODE: rows[EPISODE] + run_number(self.name, self.numbering)}
        # If this is interrupted after the file was written, the next flush replaces it.
        write_file(self.folder / f"experience-{self.files:06d}.parquet", rows, columns_of(rows), self.metadata)
        self._waiting, self.files = [], self.files + 1

    def _make_folder(self) -> None:
        """Make a folder that did not exist: PPO_CartPole-v1, PPO_CartPole-v1-2, …"""
        with writing(self.output):
            self.output.mkdir(parents=True, exist_ok=True)
            for number in range(1, 1_000_000):
                name = self.name if number == 1 else f"{self.name}-{number}"
                try:
                    (self.output / name).mkdir()
                except FileExistsError:
                    continue
                self.name, self.is_named, self._is_ready = name, True, True
                return

    # Rollback and checkpoints.

    def rollback_point(self) -> Callable[[], None]:
        """A function that drops the rows that were added since, and goes back to the folder of that time."""
        waiting, name, is_named, files = list(self._waiting), self.name, self.is_named, self.files

        def restore() -> None:
            self._waiting, self.name, self.is_named, self.files = list(waiting), name, is_named, files

        return restore

    def state(self) -> dict[str, Any]:
        return {
            "output": str(self.output), "folder": self.name, "files": self.files, "numbering": self.numbering
        }  # fmt: skip

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue after the files that a checkpoint knows. In another output folder, start with the first file."""
        output, name, files = state["output"], state["folder"], state["files"]
        if not isinstance(name, str) or Path(name).name != name or not isinstance(files, int) or files < 0:
            raise ValueError(f"recording: {state!r} is not the name of a folder and a number of files")
        numbering = state.get("numbering", 1)  # older checkpoints do not have it
        if numbering not in range(1, NUMBERING + 1):
            raise ValueError(f"recording: this version does not know numbering {numbering!r}; update outplay")
        if is_same := output == str(self.output):
            self.continues(name)
        self.files = files if is_same else 0
        self.numbering = numbering if self.files else NUMBERING
        self._waiting, self._is_ready = [], False
