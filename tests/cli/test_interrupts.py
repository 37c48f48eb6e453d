"""Ctrl-C for a program that goes on."""

from __future__ import annotations

import os
import signal

import pytest

from ggufcluster.cli.interrupts import Interrupts


def ctrl_c() -> None:
    """Send what Ctrl-C sends."""
    os.kill(os.getpid(), signal.SIGINT)


def ctrl_c_twice() -> None:
    """Send it again while the first one is on its way up."""
    try:
        ctrl_c()
    finally:
        ctrl_c()


def test_a_block_is_stopped_once() -> None:
    """Inside it raises; while that is dealt with, another one waits."""
    interrupts = Interrupts()
    with interrupts.open():
        with pytest.raises(KeyboardInterrupt), interrupts.stoppable():
            ctrl_c_twice()
        with pytest.raises(KeyboardInterrupt), interrupts.stoppable():
            pytest.fail("the second one was lost")


def test_outside_of_blocks_it_waits() -> None:
    """What comes between two blocks stops the next, unless it is forgotten."""
    interrupts = Interrupts()
    entered = []
    with interrupts.open():
        ctrl_c()
        with pytest.raises(KeyboardInterrupt), interrupts.stoppable():
            entered.append("stopped")
        with interrupts.stoppable():
            entered.append("free")
        ctrl_c()
        interrupts.forget()
        with interrupts.stoppable():
            entered.append("forgotten")
    assert entered == ["free", "forgotten"]


def test_the_signal_is_given_back() -> None:
    """After it, Ctrl-C means what it meant before."""
    before = signal.getsignal(signal.SIGINT)
    with Interrupts().open():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
