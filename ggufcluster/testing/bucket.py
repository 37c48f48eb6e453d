"""A limit on bytes a second."""

from __future__ import annotations

import threading
import time

_BURST_SECONDS = 0.05


class Bucket:
    """Bytes that may be sent now."""

    def __init__(self, rate: float | None) -> None:
        self.rate = rate
        self._next = 0.0
        self._lock = threading.Lock()

    def piece(self, most: int) -> int:
        """Return how many bytes to send at once: a hundredth of a second's, within reason."""
        return most if self.rate is None else max(1024, min(most, int(self.rate / 100)))

    def take(self, count: int) -> None:
        """Wait until `count` more bytes may be sent."""
        if self.rate is None:
            return
        with self._lock:
            now = time.monotonic()
            # A short burst makes up for late wake-ups; more would exceed the rate.
            begin = max(self._next, now - _BURST_SECONDS)
            self._next = begin + count / self.rate
        time.sleep(max(0.0, begin - now))
