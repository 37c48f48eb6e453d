"""The hub that the environment names."""

from __future__ import annotations

import pytest

from ggufcluster.errors import ConfigError
from ggufcluster.hub_wiring import open_hub


@pytest.mark.parametrize(
    "address",
    ["hub.example/mirror", "ftp://hub.example", "http://[::1", "http://", "https://a b", "/mirror"],
)
def test_what_can_be_no_hub_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """A slip in the variable is told before anybody is asked, not after minutes of trying."""
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(ConfigError, match=r"^HF_ENDPOINT: .* is no address such as https://"):
        open_hub()


@pytest.mark.parametrize(
    "address",
    [
        "",
        "http://127.0.0.1:8000/a/b/",
        "https://[::1]:1",
        "https://me:word@hub.example",
        "HTTP://h",
    ],
)
def test_addresses_of_every_form_are_taken(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """With a port, a path, a password or nothing."""
    monkeypatch.setenv("HF_ENDPOINT", address)
    open_hub()
