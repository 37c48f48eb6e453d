"""What the headers and addresses of HTTP answers mean, without asking anybody."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from ggufcluster.core.units import seconds_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)$")
_RATE_LIMIT = re.compile(r";\s*r=(\d+)\s*;\s*t=(\d+)")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MOST_BACKOFF = 30.0


@dataclass(frozen=True, slots=True)
class ContentRange:
    """Which bytes an answer holds: from `start` up to, not with, `end`; `total` may be unknown."""

    start: int
    end: int
    total: int | None


def parse_content_range(text: str) -> ContentRange | None:
    """Read a Content-Range header; None if it is none that names bytes."""
    found = _CONTENT_RANGE.match(text.strip())
    if not found:
        return None
    total = None if found[3] == "*" else int(found[3])
    return ContentRange(int(found[1]), int(found[2]) + 1, total)


def wait_seconds(headers: Mapping[str, str], *, now: float) -> float | None:
    """Return how long the server asks to wait, or None if it does not say.

    Args:
        headers: Of the answer, names in lower case.
        now: Seconds since 1970.
    """
    given = headers.get("retry-after", "").strip()
    if given.isdigit():
        return float(given)
    if given:
        return _seconds_until(given, now)
    # The hub sends RateLimit on every answer; it asks to wait only when nothing is left.
    found = _RATE_LIMIT.search(headers.get("ratelimit", ""))
    return float(found[2]) if found and found[1] == "0" else None


def wait_text(seconds: float | None) -> str:
    """Say how long a server asks to wait, to be added to what it answered."""
    return f", to be asked again in {seconds_text(seconds)}" if seconds else ""


def expiry(url: str) -> float | None:
    """Return when a signed address ends, in seconds since 1970; None if it does not say."""
    query = {name.lower(): values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    if query.get("expires", "").isdigit():
        return float(query["expires"])
    signed, lasts = query.get("x-amz-date", ""), query.get("x-amz-expires", "")
    try:
        begin = datetime.strptime(signed, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return begin.timestamp() + int(lasts)
    except ValueError:
        return None


def same_origin(one: str, other: str) -> bool:
    """Tell whether two addresses have the same scheme, host and port."""
    return _origin(one) == _origin(other)


def host_of(url: str) -> str:
    """Return host and port of an address: what may be shown of a signed one."""
    return urlsplit(url).netloc.rpartition("@")[2] or url


def backoff_seconds(attempt: int, *, chance: float) -> float:
    """Return how long to wait before attempt number `attempt` (1 is the first repetition).

    Args:
        attempt: Doubles the wait, up to half a minute.
        chance: From 0 to 1; spreads the attempts of many parts.
    """
    return min(_MOST_BACKOFF, 0.5 * 2.0 ** (attempt - 1)) * (0.5 + chance / 2)


def _seconds_until(date: str, now: float) -> float | None:
    try:
        return max(0.0, parsedate_to_datetime(date).timestamp() - now)
    except ValueError:
        return None


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, parts.hostname, parts.port or _DEFAULT_PORTS.get(scheme)
