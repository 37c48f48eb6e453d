"""Signed addresses of remote files: resolved once, renewed once for all who share them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ggufcluster.core.http_answers import expiry

if TYPE_CHECKING:
    from collections.abc import Callable

_NEAR = 30.0
_MOST_RENEWALS = 2


class Address:
    """The address of one file, shared by the threads that fetch its parts.

    Args:
        resolve: Asks the hub for an address.
    """

    def __init__(self, resolve: Callable[[], str]) -> None:
        self._resolve = resolve
        self._lock = threading.Lock()
        self._url: str | None = None
        self._since = 0.0
        self._renewals = 0

    def current(self) -> str:
        """Return the address, resolved when first needed and when it is about to expire."""
        with self._lock:
            if self._url is None or self._is_near_its_end(self._url):
                self._ask()
            assert self._url is not None
            return self._url

    def renew(self, refused: str) -> bool:
        """Ask for another address, unless somebody did since `refused` was handed out.

        Not each refusal is an address that expired: when two new ones in a row brought no byte,
        False is returned instead.
        """
        with self._lock:
            if self._url != refused:
                return True
            if self._renewals >= _MOST_RENEWALS:
                return False
            self._renewals += 1
            self._ask()
            return True

    def worked(self) -> None:
        """Note that bytes came."""
        self._renewals = 0

    def _ask(self) -> None:
        self._url = self._resolve()
        self._since = time.monotonic()

    def _is_near_its_end(self, url: str) -> bool:
        end = expiry(url)
        # A clock that is wrong must not make every part ask anew.
        fresh = time.monotonic() - self._since < _NEAR
        return end is not None and not fresh and time.time() > end - _NEAR
