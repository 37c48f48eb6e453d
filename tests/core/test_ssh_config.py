"""How an address and the SSH configuration make a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.core.ssh_config import SshTarget, expand_includes, resolve_target
from ggufcluster.core.worker_address import SshWorker
from ggufcluster.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

Options = dict[str, dict[str, Any]]


def resolve(worker: SshWorker, options: Options | None = None) -> SshTarget:
    """Resolve with a configuration given as one table per host."""

    def lookup(host: str) -> Mapping[str, Any]:
        table = options or {}
        return {**table.get("*", {}), **table.get(host, {})}

    return resolve_target(worker, lookup, user="me", home="/home/me")


def test_defaults_without_configuration() -> None:
    """An address alone takes port 22, the caller's name, the usual keys and files."""
    target = resolve(SshWorker("Spark"))

    assert (target.host, target.port, target.user, target.key_name) == ("Spark", 22, "me", "spark")
    assert target.identities[0] == "/home/me/.ssh/id_ed25519"
    assert not target.chosen_identities
    assert target.known_hosts[0] == "/home/me/.ssh/known_hosts"
    assert "/etc/ssh/ssh_known_hosts" in target.known_hosts
    assert str(target) == "me@Spark"


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30.0), ("0", None), ("none", None), ("1m", None), ("", None)]
)
def test_patience_is_configurable(text: str, seconds: float | None) -> None:
    """ConnectTimeout in plain seconds is kept; anything else leaves our own."""
    target = resolve(SshWorker("spark"), {"*": {"connecttimeout": text}})
    assert target.connect_seconds == seconds


def test_configuration_fills_the_gaps() -> None:
    """Options of the host decide what the user left open."""
    target = resolve(
        SshWorker("spark"),
        {
            "spark": {
                "hostname": "10.20.20.2",
                "port": "2222",
                "user": "ada",
                "identityfile": ["~/.ssh/spark", "/keys/b", "relative"],
                "identitiesonly": "yes",
                "identityagent": "none",
                "userknownhostsfile": "~/.ssh/sparks /etc/sparks %d/more",
            }
        },
    )

    assert (target.name, target.host, target.port, target.user) == (
        "spark",
        "10.20.20.2",
        2222,
        "ada",
    )
    assert target.identities == ("/home/me/.ssh/spark", "/keys/b", "/home/me/relative")
    assert (target.chosen_identities, target.identities_only, target.use_agent) == (
        True,
        True,
        False,
    )
    assert target.known_hosts[:3] == ("/home/me/.ssh/sparks", "/etc/sparks", "/home/me/more")
    assert target.key_name == "[10.20.20.2]:2222"


def test_the_user_wins_over_the_configuration() -> None:
    """A login name and a port in the address override the configured ones."""
    target = resolve(
        SshWorker("spark", user="root", port=22), {"spark": {"user": "ada", "port": "2222"}}
    )

    assert (target.user, target.port) == ("root", 22)


def test_host_key_alias_names_the_key() -> None:
    """HostKeyAlias is looked up as it stands, without a port."""
    target = resolve(SshWorker("spark", port=2222), {"spark": {"hostkeyalias": "box"}})

    assert target.key_name == "box"


def test_chain_of_jump_hosts() -> None:
    """A chain is passed nearest first, each hop by its own options."""
    target = resolve(
        SshWorker("spark"),
        {
            "spark": {"proxyjump": "ada@gate:2200, inner"},
            "inner": {"hostname": "10.0.0.9", "user": "eve"},
        },
    )

    hops = [(hop.user, hop.host, hop.port, hop.jumps) for hop in target.jumps]
    assert hops == [("ada", "gate", 2200, ()), ("eve", "10.0.0.9", 22, ())]


def test_jump_host_behind_a_jump_host() -> None:
    """The nearest hop may bring a jump host of its own; later hops may not."""
    target = resolve(
        SshWorker("spark"),
        {
            "spark": {"proxyjump": "middle,inner"},
            "middle": {"proxyjump": "outer"},
            "inner": {"proxyjump": "ignored"},
        },
    )

    assert [hop.host for hop in target.jumps] == ["outer", "middle", "inner"]


@pytest.mark.parametrize("value", ["none", "None"])
def test_no_jump_host(value: str) -> None:
    """ProxyJump none means a direct connection."""
    assert resolve(SshWorker("spark"), {"spark": {"proxyjump": value}}).jumps == ()


def test_a_jump_host_for_all_does_not_jump_through_itself() -> None:
    """A ProxyJump under "Host *" covers the jump host too, which is reached directly."""
    options: Options = {"*": {"proxyjump": "gate"}}

    assert [hop.host for hop in resolve(SshWorker("spark"), options).jumps] == ["gate"]
    assert resolve(SshWorker("gate"), options).jumps == ()


def test_jump_hosts_in_a_circle_end() -> None:
    """Hosts that jump through each other end at the second meeting."""
    options: Options = {"a": {"proxyjump": "b"}, "b": {"proxyjump": "a"}}

    assert [hop.host for hop in resolve(SshWorker("a"), options).jumps] == ["b"]


@pytest.mark.parametrize(
    "options",
    [
        {"proxycommand": "nc %h %p"},
        {"proxycommand": "nc %h %p", "proxyjump": "none"},
        {"port": "ssh"},
        {"port": "70000"},
        {"proxyjump": "-oProxyCommand=x"},
    ],
)
def test_unusable_options_are_refused(options: dict[str, str]) -> None:
    """What cannot be honoured is an error, not passed over in silence."""
    with pytest.raises(ConfigError):
        resolve(SshWorker("spark"), {"spark": options})


def test_proxy_command_none_is_none() -> None:
    """ProxyCommand none, which the parser turns into None, is no proxy."""
    assert resolve(SshWorker("spark"), {"spark": {"proxycommand": None}}).jumps == ()


def test_include_ends_the_sections_of_its_file() -> None:
    """After an included file the section around the Include line goes on."""
    files = {"a": ["Host inner\n  Port 1"], "b*": ["User x", "include a"]}
    text = "Include a\nPort 2\nHost outer\n  Include=b*\n  Port 3"

    expanded = expand_includes(text, lambda pattern: files[pattern])

    assert [line.strip() for line in expanded.splitlines()] == [
        "Host inner",
        "Port 1",
        "Host *",
        "Port 2",
        "Host outer",
        "User x",
        "Host inner",
        "Port 1",
        "Host *",
        "Host outer",
        "Port 3",
    ]


def test_includes_in_a_circle_are_refused() -> None:
    """A file that includes itself is an error of configuration."""
    with pytest.raises(ConfigError, match="circle"):
        expand_includes("Include me", lambda _: ["Include me"])
