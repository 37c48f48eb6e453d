"""Signed addresses that many threads share."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ggufcluster.adapters.addresses import Address

if TYPE_CHECKING:
    import pytest


def counting(*, lasts: float = 3600) -> tuple[Address, list[str]]:
    """Return an address and the list of what was handed out for it."""
    given: list[str] = []

    def resolve() -> str:
        given.append(f"https://h/x?Expires={int(time.time() + lasts)}&n={len(given)}")
        return given[-1]

    return Address(resolve), given


def test_it_is_resolved_when_needed_and_once() -> None:
    """Nobody is asked before the first use, and all who use it get the same."""
    address, given = counting()
    assert given == []
    assert address.current() == address.current()
    assert len(given) == 1


def test_all_who_find_it_expired_share_one_renewal() -> None:
    """Of many threads that were refused at the same time, one asks for another address."""
    address, given = counting()
    refused = address.current()
    threads = [threading.Thread(target=address.renew, args=(refused,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(given) == 2
    assert address.current() == given[1]


def test_renewals_without_a_byte_are_bounded() -> None:
    """After two renewals in a row it gives up; bytes that came make room for new ones."""
    address, given = counting()
    assert [address.renew(address.current()) for _ in range(3)] == [True, True, False]
    address.worked()
    assert address.renew(address.current())
    assert len(given) == 4


def test_it_is_renewed_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address about to end is replaced before it is used, but not again and again."""
    address, given = counting(lasts=5)
    address.current()
    address.current()
    assert len(given) == 1  # a clock that is wrong must not make every part ask anew
    later = time.monotonic() + 60
    monkeypatch.setattr("ggufcluster.adapters.addresses.time.monotonic", lambda: later)
    address.current()
    assert len(given) == 2
