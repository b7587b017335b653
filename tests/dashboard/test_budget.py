"""The frame budget, and what waits for a slow browser."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from outplay.dashboard import playing
from outplay.dashboard.budget import FrameBudget
from outplay.dashboard.messages import HEADER, MAX_JSON, packed, parsed, sizes
from outplay.dashboard.playing import Outbox


def sent(budget: FrameBudget, seconds: float, per_s: float, size: int) -> int:
    """How many pictures of a game with so many steps per second are sent."""
    return sum(budget.take(step / per_s, size) for step in range(int(seconds * per_s)))


def test_frames_and_bytes_are_limited() -> None:
    assert sent(FrameBudget(), 10, 30, 1000) == 300
    assert sent(FrameBudget(), 10, 20, 1000) == 200
    assert sent(FrameBudget(), 10, 60, 1000) in range(300, 332)  # and those of the burst
    assert sent(FrameBudget(bytes_per_s=1000), 10, 30, 100) in range(100, 112)
    assert sent(FrameBudget(bytes_per_s=1000), 1000, 1, 5000) in range(200, 203)  # larger than the budget of a second


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    budget = FrameBudget(frames_per_s=2, burst_s=1)
    assert [budget.take(now) for now in (5.0, 5.0, 5.0, 4.0, 3.0)] == [True, True, False, False, False]


def test_messages_are_packed_and_read() -> None:
    message = {"type": "step", "value": np.float32(0.5), "action": {"a": np.array([1, 2])}, "reward": float("nan")}
    data = packed(message, b"picture")
    text, picture = sizes(data[: HEADER.size])
    assert picture == len(b"picture")
    assert data[HEADER.size + text :] == b"picture"
    assert parsed(data[HEADER.size : HEADER.size + text]) == {
        "type": "step",
        "value": 0.5,
        "action": {"a": [1, 2]},
        "reward": None,
    }


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"type": 1}', b"\xff"])
def test_what_is_no_message_is_noticed(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's or the module's own
        parsed(text)
    with pytest.raises(ValueError, match="not a message"):
        sizes(HEADER.pack(MAX_JSON + 1, 0))


def drained(outbox: Outbox) -> list[tuple[dict[str, Any], bytes]]:
    outbox.close()

    async def read() -> list[tuple[dict[str, Any], bytes]]:
        found = []
        while (message := await outbox.get()) is not None:
            found.append(message)
        return found

    return asyncio.run(read())


def test_of_waiting_messages_only_the_newest_keeps_its_picture() -> None:
    outbox = Outbox()
    for step in range(5):
        outbox.put({"type": "step", "step": step}, b"jpeg" if step < 4 else b"")
    found = drained(outbox)
    assert [message["step"] for message, _ in found] == [0, 1, 2, 3, 4]
    assert [bool(picture) for _, picture in found] == [False, False, False, True, False]


def test_what_waits_is_bounded_and_the_ends_of_episodes_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playing, "_MAX_WAITING", 10)
    outbox = Outbox()
    outbox.put({"type": "ready"})
    for step in range(50):
        outbox.put({"type": "step", "step": step, "terminated": step in (3, 20)})
    found = [message for message, _ in drained(outbox)]
    assert len(found) == 10
    assert found[0] == {"type": "ready"}
    assert [message["step"] for message in found[1:]] == [3, 20, *range(43, 50)]
