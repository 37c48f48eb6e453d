"""Bytes sent to each worker, as the kernel counts them."""

from __future__ import annotations

import re

from ggufcluster.core.command import Command, command

_HOLDER = re.compile(r'users:\(\("([^"]+)",pid=(\d+)')
_ACKED = re.compile(r"\bbytes_acked:(\d+)")


def sockets_command() -> Command:
    """Build the command whose output `bytes_sent` reads (iproute2's ss)."""
    return command("ss", "--tcp", "--info", "--numeric", "--no-header", "state", "established")


def holder_command(port: int) -> Command:
    """Build the command whose output `holder` reads."""
    return command("ss", "--tcp", "--listening", "--processes", "--no-header", f"sport = :{port}")


def holder(output: str) -> str:
    """Name the process that listens; other users' processes can only be seen by root."""
    found = _HOLDER.search(output)
    return f"{found[1]} (pid {found[2]})" if found else "another process"


def bytes_sent(output: str, endpoints: tuple[str, ...]) -> dict[str, int]:
    """Return the acknowledged bytes by endpoint, over all connections to it."""
    sent = dict.fromkeys(endpoints, 0)
    peer = ""
    for line in output.splitlines():
        if not line[:1].isspace():
            words = line.split()
            peer = words[3] if len(words) > 3 else ""
        if peer in sent and (found := _ACKED.search(line)):
            sent[peer] += int(found[1])
    return sent
