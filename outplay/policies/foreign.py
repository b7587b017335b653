"""Classes of users in a policy, `custom_model` and `custom_action_dist`: what they raise is attributed to them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from outplay.errors import CallbackError, ConfigError, OutplayError, shortened

_OTHERS = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}")  # PyTorch and Outplay


@contextmanager
def running(who: str) -> Iterator[None]:
    """In this block, a user's class runs during a run. What it raises becomes a CallbackError that names the class."""
    try:
        yield
    except Exception as error:
        if _is_not_its_own(error):
            raise
        raise CallbackError(f"{who} raised {type(error).__name__}: {_message(error)}{_place(error)}") from error


@contextmanager
def trying(who: str, when: str) -> Iterator[None]:
    """In this block, a user's class is tried before the run. What it raises becomes a ConfigError."""
    try:
        yield
    except Exception as error:
        if _is_not_its_own(error):
            raise
        raise ConfigError(f"{who} raised {type(error).__name__} {when}: {_message(error)}{_place(error)}") from error


def _is_not_its_own(error: Exception) -> bool:
    """A check of Outplay failed, or memory was not sufficient: `enough_memory` reports that."""
    return isinstance(error, (OutplayError, MemoryError, torch.OutOfMemoryError)) or "can't allocate" in str(error)


def _place(error: Exception) -> str:
    """(file.py, line 7): the last line of the user's own code; empty if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_OTHERS)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _message(error: Exception) -> str:
    return shortened((str(error).splitlines() or [""])[0], 200)
