"""Signed addresses of remote files: resolved once, renewed once for all who share them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from ggufcluster.core.http_answers import expiry

if TYPE_CHECKING:
    from collections.abc import Callable

_NEAR = 30.0


class Address:
    """The address of one file, shared by the threads that fetch its parts.

    Args:
        resolve: Asks the hub for an address.

    Attributes:
        renewals: How often it was renewed since `worked` was called last.
    """

    def __init__(self, resolve: Callable[[], str]) -> None:
        self._resolve = resolve
        self._lock = threading.Lock()
        self._url: str | None = None
        self._since = 0.0
        self.renewals = 0

    def current(self) -> str:
        """Return the address, resolved when first needed and when it is about to expire."""
        with self._lock:
            if self._url is None or self._is_near_its_end(self._url):
                self._ask()
            assert self._url is not None
            return self._url

    def renew(self, refused: str) -> None:
        """Ask for another address, unless somebody did since `refused` was handed out."""
        with self._lock:
            if self._url == refused:
                self.renewals += 1
                self._ask()

    def worked(self) -> None:
        """Note that bytes came."""
        self.renewals = 0

    def _ask(self) -> None:
        self._url = self._resolve()
        self._since = time.monotonic()

    def _is_near_its_end(self, url: str) -> bool:
        end = expiry(url)
        # A clock that is wrong must not make every part ask anew.
        fresh = time.monotonic() - self._since < _NEAR
        return end is not None and not fresh and time.time() > end - _NEAR
