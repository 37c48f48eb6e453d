"""What headers and addresses of HTTP answers mean."""

from __future__ import annotations

import pytest

from ggufcluster.core.http_answers import (
    ContentRange,
    backoff_seconds,
    expiry,
    host_of,
    parse_content_range,
    same_origin,
    wait_seconds,
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("bytes 0-9/100", ContentRange(0, 10, 100)),
        (" bytes 5-5/* ", ContentRange(5, 6, None)),
        ("bytes */100", None),
        ("bytes 0-9", None),
        ("", None),
    ],
)
def test_content_range(text: str, found: ContentRange | None) -> None:
    """Start, end and total are read, and nothing is guessed."""
    assert parse_content_range(text) == found


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0),
        ({"retry-after": "soon"}, None),
        ({"ratelimit": '"resolvers";r=0;t=42'}, 42),
        ({"ratelimit": '"resolvers";r=12;t=42'}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds, dates and an empty budget are understood; what is left of one is no wait."""
    assert wait_seconds(headers, now=10) == seconds


@pytest.mark.parametrize(
    ("url", "end"),
    [
        ("https://h/x?Expires=1700000000&Signature=a", 1700000000),
        ("https://h/x?X-Amz-Date=19700101T000100Z&X-Amz-Expires=30", 90),
        ("https://h/x?X-Amz-Date=today&X-Amz-Expires=30", None),
        ("https://h/x?Expires=soon", None),
        ("https://h/x", None),
    ],
)
def test_when_a_signed_address_ends(url: str, end: float | None) -> None:
    """Both ways to write an end are read."""
    assert expiry(url) == end


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://h/a", "https://H:443/b?c", True),
        ("https://h/a", "http://h/a", False),
        ("https://h/a", "https://h:8443/a", False),
        ("https://h/a", "https://h.evil/a", False),
        ("https://h/a", "https://h@evil/a", False),
    ],
)
def test_origins(one: str, other: str, *, same: bool) -> None:
    """Scheme, host and port make an origin, whatever else the address holds."""
    assert same_origin(one, other) is same


def test_shown_hosts_hold_no_secret() -> None:
    """User names, passwords and signatures are left away."""
    assert host_of("https://me:secret@h:1/x?Signature=y") == "h:1"
    assert host_of("odd") == "odd"


def test_waits_double_up_to_a_limit() -> None:
    """Each attempt waits longer, spread by chance, and never for minutes."""
    assert [backoff_seconds(n, chance=1) for n in (1, 2, 3)] == [0.5, 1, 2]
    assert backoff_seconds(1, chance=0) == 0.25
    assert backoff_seconds(50, chance=1) == 30
