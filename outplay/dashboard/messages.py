"""Messages of a player: JSON, followed by a picture if it has one. Each is preceded by the two lengths in bytes."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np

HEADER = struct.Struct(">II")
MAX_JSON = 1_000_000  # bytes
MAX_PICTURE = 4_000_000  # bytes

Message = dict[str, Any]


def packed(message: Message, picture: bytes = b"") -> bytes:
    """A message as bytes. NaN and infinity become null."""
    text = json.dumps(plain(message), separators=(",", ":"), allow_nan=False).encode()
    return HEADER.pack(len(text), len(picture)) + text + picture


def sizes(header: bytes) -> tuple[int, int]:
    """(bytes of JSON, bytes of the picture). Raises ValueError if they are too large: this is no message."""
    text, picture = HEADER.unpack(header)
    if text > MAX_JSON or picture > MAX_PICTURE:
        raise ValueError("not a message of a player")
    return text, picture


def parsed(text: bytes) -> Message:
    """The JSON of a message. Raises ValueError."""
    message = json.loads(text)
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ValueError("not a message of a player")  # noqa: TRY004 - as for any other text
    return message


def plain(value: Any) -> Any:
    """Arrays and numbers of numpy as lists and numbers of Python, also inside dicts, lists and tuples."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
