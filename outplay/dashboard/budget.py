"""How many pictures, and how many bytes of them, may be sent per second."""

from __future__ import annotations

FRAMES_PER_S = 30.0
BYTES_PER_S = 4_000_000.0


class FrameBudget:
    """A token bucket: what was not used is kept for at most `burst_s` seconds.

    >>> budget = FrameBudget(frames_per_s=2, burst_s=1)
    >>> [budget.take(now) for now in (0.0, 0.1, 0.2, 1.0)]
    [True, True, False, True]
    """

    def __init__(
        self, frames_per_s: float = FRAMES_PER_S, bytes_per_s: float = BYTES_PER_S, burst_s: float = 1.0
    ) -> None:
        self._rates = frames_per_s, bytes_per_s
        self._most = max(1.0, frames_per_s * burst_s), bytes_per_s * burst_s
        self._left = self._most
        self._at: float | None = None

    def take(self, now: float, size: int = 0) -> bool:
        """Whether a picture of `size` bytes may be sent at this time (seconds). If so, it is paid for.

        A picture larger than the bytes of a burst is sent if nothing else was.
        """
        elapsed = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        frames, data = (
            min(most, left + rate * elapsed)
            for most, left, rate in zip(self._most, self._left, self._rates, strict=True)
        )
        self._left = frames, data
        if frames < 1 or data < min(size, self._most[1]):
            return False
        self._left = frames - 1, data - size
        return True
