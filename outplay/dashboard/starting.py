"""Runs that are started from the page: each is an `outplay train` process of its own, which survives the dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from outplay.errors import ConfigError, shortened
from outplay.files import remove, write_file
from outplay.runs.experiments import load_recipe, recipe_names

_MOST_ALIVE = 8
_MOST_LISTED = 50
_MOST_TEXT = 200_000  # characters of an experiment file
_OUTPUT_BYTES = 20_000  # of the output that is read
_OUTPUT_LINES = 40
_CHECK_TIMEOUT_S = 120.0


class TooManyStartsError(Exception):
    """Too many processes that were started from the page are alive."""


def recipes() -> list[dict[str, str]]:
    """The built-in recipes with their text."""
    folder = resources.files("outplay") / "recipes"
    return [
        {
            "name": name,
            "description": load_recipe(name).description,
            "text": (folder / f"{name}.yaml").read_text(),
        }
        for name in recipe_names()
    ]


class Start:
    """One process that was started from the page."""

    def __init__(self, what: str, process: subprocess.Popen[bytes], output: Path) -> None:
        self.id = secrets.token_hex(4)
        self.what = what
        self.process = process
        self.output = output
        self.started = datetime.now().astimezone().isoformat(timespec="seconds")

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def described(self, run_id: str | None) -> dict[str, Any]:
        code = self.process.poll()
        return {
            "process": self.id,
            "pid": self.process.pid,
            "what": self.what,
            "started": self.started,
            "state": "running" if code is None else "ended" if code == 0 else "failed",
            "code": code,
            "run": run_id,
            "output": self.last_lines(),
        }

    def last_lines(self) -> list[str]:
        data = _tail(self.output)
        text = data.decode("utf-8", "replace").replace("\r", "\n")
        lines = [line for line in text.split("\n") if line.strip()]
        return [shortened(line, 500) for line in lines[-_OUTPUT_LINES:]]


class Starts:
    """All processes that were started from the page."""

    def __init__(self, results: Path, run_of: Callable[[int], str | None]) -> None:
        """`run_of`: the id of the newest run that a process of this machine trains, by its process id."""
        self._results = results
        self._run_of = run_of
        self._folder: Path | None = None
        self._starts: list[Start] = []
        self._lock = asyncio.Lock()

    async def start(self, given: dict[str, str]) -> dict[str, Any]:
        """Check the experiment as `outplay train` does, then start it. `given`: recipe or text, and name."""
        if ("recipe" in given) == ("text" in given):
            raise ConfigError('the body needs either "recipe" or "text"')
        if sum(start.is_alive for start in self._starts) >= _MOST_ALIVE:
            raise TooManyStartsError
        async with self._lock:  # one check at a time: each takes seconds of a core
            arguments, what, file = self._arguments(given)
            await _check(arguments, file)
            start = self._spawn(arguments, what)
        self._starts = [*self._starts[-_MOST_LISTED + 1 :], start]
        return {"process": start.id, "message": f"{what} is being started; its run appears in the list"}

    def _arguments(self, given: dict[str, str]) -> tuple[list[str], str, Path | None]:
        """The arguments of `outplay train`, what it trains in words, and the file of the text."""
        named = [f"--name={given['name']}"] if given.get("name") else []
        if "recipe" in given:
            load_recipe(given["recipe"])  # raises ConfigError with the nearest name
            return [given["recipe"], *named], f"recipe {given['recipe']}", None
        text = given["text"]
        if len(text) > _MOST_TEXT:
            raise ConfigError(f"the text is longer than {_MOST_TEXT:,} characters")
        file = self._files() / f"experiment-{secrets.token_hex(4)}.yaml"
        write_file(file, text.encode())
        return ["-f", str(file), *named], given.get("name") or "the experiment", file

    def _files(self) -> Path:
        """A folder for experiment files and outputs."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="outplay-dashboard-"))
        return self._folder

    def _spawn(self, arguments: list[str], what: str) -> Start:
        output = self._files() / f"output-{secrets.token_hex(4)}.txt"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*_command(arguments), "--results-dir", str(self._results.absolute())],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
        threading.Thread(target=process.wait, name="start", daemon=True).start()  # it reaps the process
        return Start(what, process, output)

    def close(self) -> None:
        """Remove the folder, unless processes that write into it outlive the dashboard."""
        if self._folder is not None and not any(start.is_alive for start in self._starts):
            with contextlib.suppress(OSError):
                remove(self._folder)

    def listed(self) -> list[dict[str, Any]]:
        """The answer of /api/starts, newest first."""
        return [start.described(self._run_of(start.process.pid)) for start in reversed(self._starts)]


async def _check(arguments: list[str], file: Path | None) -> None:
    """Check an experiment exactly as `outplay train` does. Raises ConfigError with its sentence.

    In another process: it imports torch and makes the environment.
    """
    process = await asyncio.create_subprocess_exec(
        *_command(arguments), "--dry-run",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(),
        start_new_session=True,
    )  # fmt: skip
    try:
        _, err = await asyncio.wait_for(process.communicate(), _CHECK_TIMEOUT_S)
    except TimeoutError:
        raise ConfigError(f"the experiment could not be checked within {_CHECK_TIMEOUT_S:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise ConfigError(_sentence(err.decode("utf-8", "replace"), file))


def _sentence(err: str, file: Path | None) -> str:
    """The error of a command: its last line that starts with "outplay: "."""
    found = [line.removeprefix("outplay: ") for line in err.splitlines() if line.startswith("outplay: ")]
    sentence = found[-1] if found else "the experiment cannot be trained; the command said: " + shortened(err.strip())
    return sentence if file is None else sentence.replace(str(file), "the text")


def _command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "outplay", "train", *arguments]


def _environment() -> dict[str, str]:
    """Without the token of the dashboard: environments run code of others."""
    return {name: value for name, value in os.environ.items() if name != "OUTPLAY_TOKEN"}


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _OUTPUT_BYTES))
            return file.read(_OUTPUT_BYTES)
    except OSError:
        return b""
