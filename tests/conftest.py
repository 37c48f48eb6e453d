"""Fixtures for every level of tests."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING

import pytest

from ggufcluster import resources
from ggufcluster.adapters.local import LocalRemote
from ggufcluster.core.build_id import Backend
from ggufcluster.core.paths import paths_from_env
from ggufcluster.core.toy import RANDOM_NAME, RECITE_NAME
from ggufcluster.workflows.build import BuildRequest, build_engine
from ggufcluster.workflows.events import drain
from ggufcluster.workflows.toy import write_toys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ggufcluster.core.engine import Engine

# Taken before any test changes the environment: the engine's cache outlives the tests.
_REAL_ENVIRONMENT = dict(os.environ)


# Started in the background or under nohup, we would ignore these, and every program that we start
# with us. TERM unwinds like Ctrl-C: fixtures then end what they started.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
_SIGNALS = {number: signal.getsignal(number) for number in signal.valid_signals()}


@pytest.fixture(autouse=True)
def _same_signals_after() -> Iterator[None]:
    """Undo what a command that ran in this process did to its signals: children inherit that."""
    yield
    for number, handler in _SIGNALS.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _clean_surroundings(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give each test an empty home and current folder, and no settings from outside."""
    for name in [name for name in os.environ if name.startswith(("GGUFCLUSTER_", "XDG_", "HF_"))]:
        monkeypatch.delenv(name)
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The real engine for this machine's CPU, built once and kept in the cache for later runs."""
    paths = paths_from_env(_REAL_ENVIRONMENT)
    return drain(build_engine(LocalRemote(), BuildRequest(Backend.CPU), paths=paths))


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both toy models by short name: ``random`` and ``recite``."""
    template = (resources.templates() / "toy" / "minimax-m3-toy.jinja").read_text()
    folder = tmp_path_factory.mktemp("toys")
    paths = {path.stem: path for path in write_toys(folder, template=template)}
    return {"random": paths[RANDOM_NAME], "recite": paths[RECITE_NAME]}


@pytest.fixture
def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
