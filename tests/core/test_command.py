"""Commands as values."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

from ggufcluster.core.command import Command, command, script
from ggufcluster.core.secret import Secret

if TYPE_CHECKING:
    from pathlib import Path

AWKWARD = ("a b", "it's", '"x"', "$HOME", "`id`", "-n", "", "new\nline", "*", "ü", "\\", "a;b")


def test_every_piece_arrives_as_it_is() -> None:
    """A shell that runs the text hands the program exactly the pieces of argv."""
    text = command("printf", "[%s]", *AWKWARD).shell()
    result = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    assert result.stdout == "".join(f"[{piece}]" for piece in AWKWARD)


def test_environment_and_folder_reach_the_program() -> None:
    """Variables and the working folder are set for the program, quotes and spaces included."""
    call = Command(("sh", "-c", 'printf "%s|%s" "$GREETING" "$PWD"'), {"GREETING": "it's $x"}, "/")
    result = subprocess.run(["sh", "-c", call.shell()], capture_output=True, text=True, check=True)
    assert result.stdout == "it's $x|/"


def test_variables_reach_a_program_whose_path_holds_an_equals_sign(tmp_path: Path) -> None:
    """Its path is not taken for one more variable, nor is a word that looks like one."""
    program = tmp_path / "a=b" / "say"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s|" "$GREETING" "$@"\n')
    program.chmod(0o755)
    call = Command((str(program), "B=c", "it's"), {"GREETING": "a=b $x"})
    for words in (["sh", "-c", call.shell()], [str(piece) for piece in call.with_variables()]):
        result = subprocess.run(words, capture_output=True, text=True, check=True)
        assert result.stdout == "a=b $x|B=c|it's|"


def test_arguments_of_a_script_are_no_part_of_its_text() -> None:
    """A script sees its arguments as $1 and $2, whatever they hold."""
    call = script('printf "%s-%s" "$2" "$1"', "$(id)", "a'b")
    result = subprocess.run(call.plain_argv(), capture_output=True, text=True, check=True)
    assert result.stdout == "a'b-$(id)"


def test_secrets_are_masked_where_people_look() -> None:
    """Shown text and masked output hide secrets; shell text and plain argv hold them."""
    call = Command(("curl", "-H", Secret("key one")), {"TOKEN": Secret("key2")})
    assert "key" not in call.shown()
    assert "key" not in repr(call)
    assert shlex.split(call.shell()) == ["env", "TOKEN=key2", "curl", "-H", "key one"]
    assert call.plain_argv() == ["curl", "-H", "key one"]
    assert "key" not in call.mask("refused: key one, key2")


def test_an_empty_secret_masks_nothing() -> None:
    """An empty secret leaves other text as it is."""
    assert command("true", Secret("")).mask("plain") == "plain"
