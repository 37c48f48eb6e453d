"""How secrets are kept out of a program's output."""

from __future__ import annotations

from ggufcluster.core.command import Command
from ggufcluster.core.secret import Secret


def test_mask_hides_every_secret_of_the_command() -> None:
    """Secrets of arguments and environment are masked wherever the text repeats them."""
    asked = Command(("login", Secret("hunter2"), Secret("")), env={"KEY": Secret("abc")})

    assert asked.mask("hunter2, abc and hunter2") == "********, ******** and ********"
