"""Fetch files by many connections at once, into `PartialFile`s, hashing them as they grow."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ggufcluster.adapters.addresses import Address
from ggufcluster.adapters.partial_file import PartialFile, PrefixHash
from ggufcluster.core.download.policy import FetchPolicy, Remedy, remedy
from ggufcluster.core.download.schedule import Claim, Schedule, part_size
from ggufcluster.core.http_answers import backoff_seconds
from ggufcluster.core.units import KIB, size_text
from ggufcluster.errors import RemoteChangedError, TransferError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from ggufcluster.adapters.http import RangeClient

# Stays in a processor's cache from being received to being written; smaller ones take more turns.
_BUFFER = 512 * KIB
_TICK = 0.2
_CHECKPOINT_SECONDS = 5.0
_MOST_HASHERS = 4
# Bytes are saved long before they are a part: a slow disk must not hold the network back.
_SAVE_SHARE = 8


@dataclass(slots=True, eq=False)
class Fetched:
    """One file on its way.

    Attributes:
        partial: Where its bytes go.
        address: Where they come from.
        hash: What was hashed of it so far.
        unsaved: Bytes written since the last checkpoint.
        is_stale: Whether the server was found to send another file; see `Fetch.restart`.
    """

    partial: PartialFile
    address: Address
    hash: PrefixHash = field(init=False)
    unsaved: int = 0
    is_stale: bool = False

    def __post_init__(self) -> None:
        self.hash = PrefixHash(self.partial)


class Fetch:
    """A download at work in threads of its own; a context manager, started on entry.

    Whoever owns it calls `wait` again and again and looks at `files`. On exit all threads are ended
    and what has arrived is safe on disk.

    Args:
        files: Where each goes and how its address is resolved.
        client: Connections.
        policy: How many connections and how patient.

    Attributes:
        files: The files, in the order given.
        part_bytes: What one request asks for, and the most that a power cut can cost.
        resume_at: Until when (monotonic seconds) the server asked all to wait.
    """

    def __init__(
        self,
        files: Sequence[tuple[PartialFile, Callable[[], str]]],
        client: RangeClient,
        *,
        policy: FetchPolicy,
    ) -> None:
        self.files = [Fetched(partial, Address(resolve)) for partial, resolve in files]
        self._client = client
        self._policy = policy
        gaps = [file.partial.gaps for file in self.files]
        missing = sum(end - start for spans in gaps for start, end in spans)
        self.part_bytes = policy.part_bytes or part_size(missing, policy.connections)
        self._schedule = Schedule(
            gaps,
            part_bytes=self.part_bytes,
            least_split=policy.least_split,
            connections=policy.connections,
        )
        lock = threading.RLock()
        self._changed = threading.Condition(lock)  # claims come and go
        self._room = threading.Condition(lock)  # bytes became safe on disk
        self._pressed = threading.Event()  # somebody waits for room
        self._stop = threading.Event()
        self._news = threading.Event()
        self._received = 0
        self._in_flight = 0
        self._waiting = 0
        self._error: BaseException | None = None
        self.resume_at = 0.0
        hashers = min(len(self.files), os.cpu_count() or 1, _MOST_HASHERS)
        works: list[Callable[[], None]] = [self._fetch_parts] * policy.connections
        works += [self._keep, *(lambda n=n: self._hash(n, hashers) for n in range(hashers))]
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), daemon=True) for work in works
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._wake_to_stop()
        # One that waits for a server's first byte ends by itself, and writes nothing any more.
        until = time.monotonic() + 2 * _TICK
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        with ExitStack() as stack:
            for file in self.files:
                stack.callback(file.partial.close)
                if file.unsaved:
                    file.partial.checkpoint()

    def wait(self, seconds: float) -> None:
        """Wait until something ends, or for a time; raise what made the download fail."""
        self._news.wait(seconds)
        self._news.clear()
        if self._error is not None:
            raise self._error

    def restart(self, number: int) -> None:
        """Forget what was fetched of a file and fetch it anew."""
        file = self.files[number]
        with self._changed:
            self._schedule.abandon(number)
            while any(claim.file == number for claim in self._schedule.active):
                self._changed.wait(_TICK)
                if self._error is not None:
                    raise self._error
            file.partial.restart()
            file.hash.restart()
            file.unsaved, file.is_stale = 0, False
            self._schedule.restore(number, file.partial.published.size)
            self._changed.notify_all()
            self._room.notify_all()

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - the owner gets it from `wait`
            self._error = self._error or error
            self._wake_to_stop()
            self._news.set()

    def _wake_to_stop(self) -> None:
        self._stop.set()
        self._pressed.set()
        with self._changed:
            self._changed.notify_all()
            self._room.notify_all()

    def _fetch_parts(self) -> None:
        buffer = memoryview(bytearray(_BUFFER))
        while not self._stop.is_set():
            with self._changed:
                claim = self._schedule.claim()
                if claim is None:
                    self._changed.wait(_TICK)
                    continue
            while claim.left and not self._stop.is_set():
                self._pause_for_all()
                self._try(claim, buffer)
            with self._changed:
                self._schedule.finish(claim)
                self._changed.notify_all()

    def _try(self, claim: Claim, buffer: memoryview) -> None:
        address = self.files[claim.file].address
        url = ""
        try:
            url = address.current()
            self._receive(claim, url, buffer)
        except RemoteChangedError:
            self._set_stale(claim)
        except TransferError as error:
            claim.attempts += 1
            self._mend(claim, error, url)

    def _mend(self, claim: Claim, error: TransferError, url: str) -> None:
        address = self.files[claim.file].address
        pause = backoff_seconds(claim.attempts, chance=random.random()) * self._policy.pause  # noqa: S311
        match remedy(error.status, wait=error.wait, attempts=claim.attempts, policy=self._policy):
            case Remedy.REPEAT:
                self._stop.wait(pause)
            case Remedy.WAIT:
                self.resume_at = max(self.resume_at, time.monotonic() + (error.wait or pause))
            case Remedy.RENEW if url and address.renew(url):
                pass
            case Remedy.RESTART:
                self._set_stale(claim)
            case _:
                raise error

    def _set_stale(self, claim: Claim) -> None:
        with self._changed:
            self._schedule.abandon(claim.file)
            self.files[claim.file].is_stale = True
            self._changed.notify_all()
        self._news.set()

    def _receive(self, claim: Claim, url: str, buffer: memoryview) -> None:
        file = self.files[claim.file]
        size = file.partial.published.size
        with self._client.open_range(url, claim.position, claim.end, total=size) as body:
            watch = _Watch(self._policy, self._mean_rate)
            while claim.left > 0 and not self._stop.is_set():
                count = body.read_into(buffer, seconds=_TICK)
                watch.look(count)
                if count:
                    file.address.worked()
                    self._write(claim, buffer[:count])

    def _write(self, claim: Claim, data: memoryview) -> None:
        file = self.files[claim.file]
        with self._changed:
            self._wait_for_disk(len(data))
            data = data[: claim.left]
            if self._stop.is_set() or not data:
                return
            self._in_flight += len(data)
        file.partial.write(claim.position, data)
        with self._changed:
            claim.position += len(data)
            claim.attempts = 0
            file.unsaved += len(data)
            self._in_flight -= len(data)
            self._received += len(data)
            if self._waiting or self._unsaved() >= self.part_bytes // _SAVE_SHARE:
                self._pressed.set()

    def _wait_for_disk(self, count: int) -> None:
        """Hold back what would make the bytes that are not safe on disk more than a part."""
        while (risk := self._unsaved() + self._in_flight) and not self._stop.is_set():
            if risk + count <= self.part_bytes:
                break
            self._waiting += 1
            self._pressed.set()
            self._room.wait()
            self._waiting -= 1

    def _pause_for_all(self) -> None:
        while (left := self.resume_at - time.monotonic()) > 0 and not self._stop.is_set():
            self._stop.wait(min(left, _TICK))

    def _mean_rate(self, before: tuple[float, int] | None) -> tuple[float, tuple[float, int]]:
        """Return the mean rate of the parts at work since `before`, and the next `before`."""
        now = (time.monotonic(), self._received)
        if before is None or now[0] <= before[0]:
            return 0.0, now
        rate = (now[1] - before[1]) / (now[0] - before[0])
        return rate / max(1, len(self._schedule.active)), now

    def _unsaved(self) -> int:
        return sum(file.unsaved for file in self.files)

    def _keep(self) -> None:
        """Have what was written safe on disk, soon after an eighth of a part has come."""
        last = time.monotonic()
        while not self._stop.is_set():
            pressed = self._pressed.wait(_TICK)
            if pressed or time.monotonic() - last > _CHECKPOINT_SECONDS:
                self._pressed.clear()
                for file in self.files:
                    self._save(file)
                last = time.monotonic()

    def _save(self, file: Fetched) -> None:
        saved = file.unsaved
        if saved:
            file.partial.checkpoint()
            with self._room:
                file.unsaved = max(0, file.unsaved - saved)
                self._room.notify_all()

    def _hash(self, number: int, step: int) -> None:
        mine = self.files[number::step]
        while not self._stop.is_set():
            at_work = [file.hash for file in mine if not file.hash.is_complete]
            advanced = [growing.advance() for growing in at_work]
            if any(growing.is_complete for growing in at_work):
                self._news.set()
            if not any(advanced):
                self._stop.wait(_TICK / 4)


class _Watch:
    """Notices that a part has stalled."""

    def __init__(
        self,
        policy: FetchPolicy,
        mean_rate: Callable[[tuple[float, int] | None], tuple[float, tuple[float, int]]],
    ) -> None:
        self._policy = policy
        self._mean_rate = mean_rate
        _, self._before = mean_rate(None)
        self._last = self._begin = time.monotonic()
        self._count = 0

    def look(self, count: int) -> None:
        """Note that so many bytes came; raises `TransferError` if the part must connect anew."""
        now = time.monotonic()
        self._count += count
        if count:
            self._last = now
        if now - self._last > self._policy.silence:
            raise TransferError(f"was silent for {now - self._last:.0f} s", where="the server")
        if now - self._begin < self._policy.rate_window:
            return
        rate = self._count / (now - self._begin)
        mean, self._before = self._mean_rate(self._before)
        if self._policy.is_stalled(rate, mean=mean):
            raise TransferError(f"gave {size_text(rate)}/s only", where="the server")
        self._begin, self._count = now, 0
