"""Logging in with keys."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from ggufcluster.errors import (
    AuthenticationError,
    HostError,
)
from tests.adapters.sshd import SshServer, make_key, say_hello
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run an SSH agent that holds no key."""
    path = tmp_path / "agent"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    wait_for(path.exists, what="the agent")
    yield
    process.terminate()
    process.wait()


def test_wrong_key_is_refused_by_name(sshd: SshServer, tmp_path: Path) -> None:
    """A key that the host does not take is an authentication error that names the key's file."""
    wrong = make_key(tmp_path / "wrong")

    with pytest.raises(AuthenticationError) as caught:
        say_hello(sshd.target(identities=(wrong,)))

    assert caught.value.tried == (str(wrong),)
    assert "PRIVATE KEY" not in str(caught.value)


def test_keys_are_tried_in_turn(sshd: SshServer, tmp_path: Path) -> None:
    """Missing, broken and wrong keys are passed over until one is taken."""
    broken = tmp_path / "broken"
    broken.write_text("no key")
    keys = (tmp_path / "missing", broken, make_key(tmp_path / "wrong"), sshd.client_key)

    assert say_hello(sshd.target(identities=keys)) == "hello\n"


def test_what_could_not_be_offered_is_told(sshd: SshServer, tmp_path: Path) -> None:
    """The error says of each key why it did not serve; the way out of a passphrase is named."""
    broken = tmp_path / "broken"
    broken.write_text("no key")
    locked = make_key(tmp_path / "locked", passphrase="open sesame")

    with pytest.raises(AuthenticationError) as caught:
        say_hello(sshd.target(identities=(tmp_path / "missing", broken, locked)))

    missing_note, broken_note, locked_note = caught.value.tried
    assert "no such file" in missing_note
    assert "not readable as a private key" in broken_note
    assert "ssh-add" in locked_note


def test_too_many_wrong_keys(sshd: SshServer, tmp_path: Path) -> None:
    """A server that hangs up after several wrong keys is an authentication error that says so."""
    wrong = tuple(make_key(tmp_path / f"wrong{number}") for number in range(8))

    with pytest.raises(AuthenticationError) as caught:
        say_hello(sshd.target(identities=wrong))

    assert caught.value.tried[-1] == "the server hung up"


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("identities_only", [False, True])
def test_agent_opens_a_locked_key(
    sshd: SshServer, tmp_path: Path, *, identities_only: bool
) -> None:
    """A key behind a passphrase works through the agent, with IdentitiesOnly too."""
    subprocess.run(["ssh-add", "-q", sshd.client_key], check=True, capture_output=True)
    locked = tmp_path / "locked"
    locked.with_suffix(".pub").write_text(sshd.client_key.with_suffix(".pub").read_text())
    target = replace(
        sshd.target(identities=(locked,), use_agent=True), identities_only=identities_only
    )

    assert say_hello(target) == "hello\n"


@pytest.mark.usefixtures("agent")
def test_agent_keys_of_others_stay_at_home(sshd: SshServer, tmp_path: Path) -> None:
    """With IdentitiesOnly an agent's other keys are not offered."""
    subprocess.run(["ssh-add", "-q", sshd.client_key], check=True, capture_output=True)
    target = replace(
        sshd.target(identities=(tmp_path / "none",), use_agent=True), identities_only=True
    )

    with pytest.raises(AuthenticationError):
        say_hello(target)


def test_errors_hold_no_key(own_sshd: SshServer, caplog: pytest.LogCaptureFixture) -> None:
    """No error and no log line, debugging included, holds a private key or its passphrase."""
    caplog.set_level(0)
    locked = make_key(own_sshd.folder / "locked", passphrase="open sesame")
    errors: list[HostError] = []
    for keys in ((locked,), (make_key(own_sshd.folder / "wrong"),)):
        with pytest.raises(AuthenticationError) as caught:
            say_hello(own_sshd.target(identities=keys))
        errors.append(caught.value)

    body = own_sshd.client_key.read_text().splitlines()[1]
    text = caplog.text + "".join(repr(vars(error)) for error in errors)
    assert body not in text
    assert "open sesame" not in text
