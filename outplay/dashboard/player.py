"""The process in which a checkpoint plays for one viewer: `python -m outplay.dashboard.player`.

The first line of stdin is the request: {"run": PATH, "checkpoint": NAME or null, "seed": N or null, "trust": bool}.
Each further line is a command: see `playing.py`, which checks them. Messages go to stdout: see `messages.py`. The
process ends when stdin is closed.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from outplay.dashboard.budget import FrameBudget
from outplay.dashboard.messages import Message, packed, plain
from outplay.errors import OutplayError

if TYPE_CHECKING:
    import numpy as np

    from outplay.runs.viewing import Moment, Viewer

NEWEST = "newest"  # instead of a checkpoint's name
SPEEDS = (1.0, 60.0)  # steps per second
LONGEST_SIDE = 480  # pixels
_QUALITY = 80  # of JPEG
_MAX_ACTION = 4096  # characters
_LAST_MOMENT_S = 0.5  # how long the end of an episode is shown
_POLL_S = 2.0  # between two looks for new checkpoints
_NICEST = 19  # the lowest priority

Send = Callable[[Message, bytes], None]


class Player:
    """Plays episodes, one after the other, and obeys commands in between."""

    def __init__(self, viewer: Viewer, seed: int | None, follows: bool, commands: queue.Queue[Message], send: Send):
        """`follows`: a new checkpoint is taken at the next episode."""
        self._viewer, self._commands, self._send = viewer, commands, send
        self._follows = follows
        self._seed = viewer.seed if seed is None else seed
        self._episode = 0
        self._is_paused = False
        self._speed = min(max(viewer.view.fps, SPEEDS[0]), SPEEDS[1])
        self._shown_at = self._polled_at = time.monotonic()
        self._budget = FrameBudget()
        self._announced = viewer.checkpoint  # the newest checkpoint that the viewer was told of
        self._no_pictures = viewer.view.no_pictures
        if viewer.view.has_pictures and importlib.util.find_spec("PIL") is None:
            self._no_pictures = "pictures need Pillow: pip install pillow"

    def play(self) -> None:
        """Play until the process is ended."""
        self._send_ready()
        if self._no_pictures:
            self._send_error(self._no_pictures)
        while True:
            self._follow()
            self._play_episode()

    def _play_episode(self) -> None:
        """One episode, or its beginning if a command ends it. Sets the number of the next one."""
        number = self._episode
        for moment in self._viewer.episode(self._seed, number, self._wants_picture):
            self._show(moment)
            if self._is_restarted(_LAST_MOMENT_S if moment.is_last else 0.0):
                return
        self._episode = number + 1

    def _wants_picture(self) -> bool:
        return not self._no_pictures and (self._is_paused or self._budget.take(time.monotonic()))

    # Messages.

    def _send_ready(self) -> None:
        viewer, view = self._viewer, self._viewer.view
        names = view.action_names
        self._send(
            {
                "type": "ready",
                "env": viewer.env,
                "algorithm": viewer.algorithm,
                "checkpoint": viewer.checkpoint,
                "follows": self._follows,
                "seed": self._seed,
                "speed": self._speed,
                "actions": view.action_count if names is None else names,
                "has_pictures": view.has_pictures and not self._no_pictures,
                "observation_names": view.observation_names,
            },
            b"",
        )

    def _send_error(self, sentence: str) -> None:
        """A problem that does not end the player."""
        self._send({"type": "error", "error": sentence, "fatal": False}, b"")

    def _show(self, moment: Moment) -> None:
        choice = moment.choice
        message = {
            "type": "step",
            "episode": self._episode,
            "step": moment.step,
            "seed": self._seed,
            "reward": moment.reward,
            "return": moment.episode_return,
            "terminated": moment.terminated,
            "truncated": moment.truncated,
            "action": _short(moment.action),
            "chosen": [] if choice is None else choice.chosen,
            "probabilities": None if choice is None else _rounded(choice.probabilities),
            "value": None if choice is None else choice.value,
            "q": None if choice is None else _rounded(choice.q),
            "observation": _rounded(moment.observation),
        }
        picture = None if self._no_pictures else moment.picture
        self._send(message, b"" if picture is None else jpeg(picture))
        self._shown_at = time.monotonic()

    # Commands.

    def _is_restarted(self, longer_s: float) -> bool:
        """Wait until the next step is due, or a command asks for it. True if a command has ended the episode."""
        while True:
            now = time.monotonic()
            left = self._shown_at + 1 / self._speed + longer_s - now
            if self._is_paused:
                left = _POLL_S
            elif left <= 0 and self._commands.empty():
                return False
            self._poll(now)
            try:
                command = self._commands.get(timeout=min(max(left, 0.0), _POLL_S))
            except queue.Empty:
                continue
            if command["command"] == "step":
                self._is_paused = True
                return False
            if self._obey(command):
                return True

    def _obey(self, command: Message) -> bool:
        """Obey a command. True if another episode starts."""
        match command["command"]:
            case "pause":
                self._is_paused = True
            case "resume":
                self._is_paused = False
            case "speed":
                self._speed = min(max(float(command["value"]), SPEEDS[0]), SPEEDS[1])
            case "restart":
                if command.get("seed") is None:
                    self._episode += 1
                else:
                    self._seed, self._episode = int(command["seed"]), 0
                return True
            case "checkpoint":
                return self._change_checkpoint(command["name"])
        return False

    def _change_checkpoint(self, name: str) -> bool:
        try:
            self._viewer.load(None if name == NEWEST else name)
        except OutplayError as error:
            self._send_error(sentence_of(error))
            return False
        self._follows, self._episode = name == NEWEST, 0
        self._send_ready()
        return True

    # New checkpoints.

    def _poll(self, now: float) -> None:
        """Tell the viewer of a new checkpoint."""
        if now - self._polled_at < _POLL_S:
            return
        self._polled_at = now
        newest = self._viewer.newest()
        if newest not in (None, self._announced, self._viewer.checkpoint):
            self._send({"type": "newer", "checkpoint": newest}, b"")
        self._announced = newest or self._announced

    def _follow(self) -> None:
        """Take the newest checkpoint, if asked to."""
        newest = self._viewer.newest() if self._follows else None
        if newest not in (None, self._viewer.checkpoint):
            with suppress(OutplayError):  # it was removed meanwhile: the next episode tries again
                self._viewer.load()
                self._announced = self._viewer.checkpoint
                self._send_ready()


def _rounded(numbers: list[Any] | None) -> list[float | None] | None:
    """Six digits are enough to look at."""
    return None if numbers is None else [None if x is None else float(f"{x:.6g}") for x in numbers]


def _short(action: Any) -> Any:
    """The action as JSON has it; None if it has too many numbers to look at."""
    short = plain(action)
    return short if len(json.dumps(short)) <= _MAX_ACTION else None


def jpeg(picture: np.ndarray) -> bytes:
    """A picture as JPEG, made smaller if one side is longer than LONGEST_SIDE."""
    from PIL import Image

    image = Image.fromarray(picture[..., :3])
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=_QUALITY)
    return data.getvalue()


def sentence_of(error: BaseException) -> str:
    """One line about an exception."""
    text = str(error) if isinstance(error, OutplayError) else f"{type(error).__name__}: {error}"
    return (text.splitlines() or [type(error).__name__])[0]


def _own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """(stdin, stdout) of this process alone: what an environment reads and prints does not disturb the messages."""
    requests, output = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, output


def _read_commands(source: IO[bytes], commands: queue.Queue[Message]) -> None:
    """Runs in a thread. The end of stdin ends the process, also while an environment does not return."""
    for line in source:
        with suppress(ValueError):
            commands.put(json.loads(line))
    if os.getpgrp() == os.getpid():  # with the processes that an environment has started
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(0)


def main() -> None:
    """Play what the request on stdin names."""
    source, output = _own_pipes()
    with suppress(OSError):
        os.nice(_NICEST)

    def send(message: Message, picture: bytes) -> None:
        output.write(packed(message, picture))
        output.flush()

    commands: queue.Queue[Message] = queue.Queue()
    request = json.loads(source.readline())
    threading.Thread(target=_read_commands, args=(source, commands), daemon=True).start()
    try:
        _play(request, commands, send)
    except BrokenPipeError:  # the server has ended
        pass
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an environment may raise anything
        with suppress(OSError):
            send({"type": "error", "error": sentence_of(error), "fatal": True}, b"")
        sys.stderr.flush()
        os._exit(1)


def _play(request: Message, commands: queue.Queue[Message], send: Send) -> None:
    import torch

    from outplay.runs.folder import RunFolder
    from outplay.runs.viewing import Viewer

    torch.set_num_threads(1)
    name = request["checkpoint"]
    follows = name in (None, NEWEST)
    viewer = Viewer(RunFolder(request["run"]), None if follows else name, request["trust"])
    Player(viewer, request["seed"], follows, commands, send).play()


if __name__ == "__main__":
    main()
