"""The chat in a terminal and in scripts: the real command against a server that streams."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from ggufcluster.core.record import ClusterRecord, to_json
from tests.cli.chat_server import HANG, ChatServer, call, end, serving, text, thought
from tests.cli.terminal import command, environment, terminal

if TYPE_CHECKING:
    from pathlib import Path

HELLO = [thought("Hm, a greeting. "), thought("I greet back."), text("Hel"), text("lo."), end()]
AGAIN = [text("Again."), end()]
TOOLS = '''
def add(a: int, b: int) -> int:
    """Add two numbers."""
    print("adding")
    return a + b

def fail() -> None:
    """Fail."""
    raise RuntimeError("out of paper")
'''


def run(
    home: Path, server: ChatServer, *words: str, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command as scripts do, with something on its stdin."""
    return subprocess.run(
        command("chat", "--url", server.root, *words),
        check=False,
        input=given,
        capture_output=True,
        text=True,
        env=environment(home),
        cwd=home,
        timeout=120,
    )


def events(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """Read stdout as one JSON object a line."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_conversation_in_a_terminal(tmp_path: Path) -> None:
    """The answer streams, reasoning is folded to a line and shown on demand, Ctrl-D leaves."""
    with (
        serving(HELLO, AGAIN) as server,
        terminal(tmp_path, "chat", "--url", server.root) as screen,
    ):
        screen.line("hi")
        shown = screen.expect("tokens of context (4 %)")
        assert "thought for" in shown
        assert "6 words" in shown
        assert "Hello." in shown
        assert "12.0 tokens/s, 42 of 1,000" in shown
        screen.line("/reasoning")
        screen.expect("Hm, a greeting. I greet back.")
        screen.line("more")
        screen.expect("Again.")
        screen.expect("> ")
        screen.type("\x04")
        assert screen.leave() == 0
    assert server.said() == [("user", "hi"), ("assistant", "Hello."), ("user", "more")]


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(tmp_path: Path) -> None:
    """The server is told to stop, what came is kept, and the next question goes on from there."""
    with (
        serving([text("Once upon"), HANG], AGAIN) as server,
        terminal(tmp_path, "chat", "--url", server.root) as screen,
    ):
        screen.line("a story")
        screen.expect("Once upon")
        screen.stop()
        screen.expect("stopped; what came is kept")
        assert server.gone.wait(60)
        screen.line("go on")
        screen.expect("Again.")
        screen.line("/exit")
        assert screen.leave() == 0
    assert server.said() == [("user", "a story"), ("assistant", "Once upon"), ("user", "go on")]


def test_a_question_that_was_stopped_before_its_answer_is_taken_back(tmp_path: Path) -> None:
    """Ctrl-C while the model thinks leaves no question behind; at the prompt it leaves nothing."""
    with (
        serving([thought("Well"), HANG], AGAIN) as server,
        terminal(tmp_path, "chat", "--url", server.root, "--show-reasoning") as screen,
    ):
        screen.line("first")
        screen.expect("Well")
        screen.stop()
        screen.expect("the question is taken back")
        screen.expect("> ")
        screen.type("half a li")
        screen.expect("half a li")
        screen.stop()
        screen.expect("Ctrl-D leaves")
        screen.line("second")
        screen.expect("Again.")
    assert server.said() == [("user", "second")]


def test_one_question_that_is_refused_ends_with_its_code(tmp_path: Path) -> None:
    """The server's words are on stderr, without what a terminal would obey; stdout is empty."""
    with serving(400) as server:
        done = run(tmp_path, server, "hi")
    assert (done.returncode, done.stdout) == (54, "")
    assert "no luck today" in done.stderr


def test_an_error_ends_a_turn_only(tmp_path: Path) -> None:
    """What the server refuses is shown with its words, and the chat goes on without it."""
    with (
        serving(400, [text("Half")], AGAIN) as server,
        terminal(tmp_path, "chat", "--url", server.root) as screen,
    ):
        screen.line("first")
        screen.expect("no luck today")
        screen.expect("taken back")
        screen.line("second")
        screen.expect("the connection was closed")
        screen.line("third")
        screen.expect("Again.")
    assert server.said() == [("user", "second"), ("assistant", "Half"), ("user", "third")]


def test_commands_work(tmp_path: Path) -> None:
    """Help, system, save, new, load, undo and unknown commands do what they say."""
    with (
        serving(HELLO, AGAIN) as server,
        terminal(tmp_path, "chat", "--url", server.root) as screen,
    ):
        screen.line("/help")
        screen.expect("/system [TEXT]")
        screen.line("/etc/passwd")
        screen.expect("is no command")
        screen.line("/system Be short.")
        screen.expect("Be short.")
        screen.expect("Be short.")
        screen.line("hi")
        screen.expect("Hello.")
        screen.line("/save a.json")
        screen.line("/new")
        screen.expect("a new conversation")
        screen.line("/undo")
        screen.expect("nothing to undo")
        screen.line("/load nothing.json")
        screen.expect("No such file")
        screen.line("/load a.json")
        screen.expect("2 messages")
        screen.line("//slash")
        screen.expect("Again.")
        screen.line("/undo")
        screen.expect("taken back: /slash")
    assert server.said() == [
        ("system", "Be short."),
        ("user", "hi"),
        ("assistant", "Hello."),
        ("user", "/slash"),
    ]


def test_history_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    """Lines come back with the arrow in a later run; answers to questions do not."""
    (tmp_path / "t.py").write_text(TOOLS)
    script = [call("add", '{"a": 1, "b": 2}'), end("tool_calls")]
    with serving(script, AGAIN, AGAIN) as server:
        words = ("chat", "--url", server.root, "--tools", "t.py")
        with terminal(tmp_path, *words) as screen:
            screen.line("remember me")
            screen.expect("[a]lways: ")
            screen.type("y\r")
            screen.expect("Again.")
            screen.line("/exit")
            assert screen.leave() == 0
        path = tmp_path / ".local/state/ggufcluster/chat_history"
        assert path.read_text().splitlines() == ["remember me", "/exit"]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with terminal(tmp_path, *words) as screen:
            screen.expect("> ")
            screen.type("\x1b[A\x1b[A\r")
            screen.expect("Again.")
    assert server.said() == [("user", "remember me")]


def test_a_tool_is_asked_for_before_it_runs(tmp_path: Path) -> None:
    """No means that the model is told so; always asks no more for that tool."""
    (tmp_path / "t.py").write_text(TOOLS)
    add = [call("add", '{"a": 1, "b": 2}'), end("tool_calls")]
    with (
        serving(add, add, add, AGAIN) as server,
        terminal(tmp_path, "chat", "--url", server.root, "--tools", "t.py") as screen,
    ):
        screen.line("add")
        screen.expect('calls add {"a": 1, "b": 2}')
        screen.expect("[a]lways: ")
        screen.type("n\r")
        screen.expect("add failed Error: the user did not allow")
        screen.expect("[a]lways: ")
        screen.type("what\r")
        screen.expect("[a]lways: ")
        screen.type("a\r")
        screen.expect("add gave 3")
        assert "lways" not in screen.expect("Again.")
    results = [content for role, content in server.said() if role == "tool"]
    assert results[0].startswith("Error: the user did not allow")
    assert results[1:] == ["3", "3"]


@pytest.mark.parametrize("options", [(), ("-q",)])
def test_nothing_is_allowed_that_was_not_shown(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Before it is asked for, a long call is shown whole, also if all else is left out."""
    (tmp_path / "t.py").write_text("def keep(text: str) -> None: pass\n")
    long = json.dumps({"text": "x" * 300 + "middle" + "y" * 300})
    script = [call("keep", long), end("tool_calls")]
    with (
        serving(script, AGAIN) as server,
        terminal(tmp_path, "chat", "--url", server.root, "--tools", "t.py", *options) as screen,
    ):
        screen.line("go")
        shown = screen.expect("[a]lways: ").replace("\n", "")
        assert long in shown
        screen.type("n\r")
        screen.expect("Again.")


def test_ctrl_c_at_the_question_for_a_tool_stops_the_turn(tmp_path: Path) -> None:
    """The call is not run, and has a result all the same, so that the server takes the next."""
    (tmp_path / "t.py").write_text(TOOLS)
    two = [call("add", '{"a": 1, "b": 2}'), call("fail", "{}", 1), end("tool_calls")]
    with (
        serving(two, AGAIN) as server,
        terminal(tmp_path, "chat", "--url", server.root, "--tools", "t.py") as screen,
    ):
        screen.line("add")
        screen.expect("[a]lways: ")
        screen.stop()
        screen.expect("stopped")
        screen.line("never mind")
        screen.expect("Again.")
    said = server.said()
    assert [role for role, _ in said] == ["user", "assistant", "tool", "tool", "user"]
    assert all("was not run" in content for role, content in said if role == "tool")


def test_a_hostile_answer_does_not_reach_the_terminal(tmp_path: Path) -> None:
    """Escape sequences in text, reasoning, calls and results are shown, not obeyed."""
    evil = "\x1b]0;owned\x07\x1b[2J"
    arguments = json.dumps({"a": 1})
    script = [thought(evil), call(f"add{evil}", arguments + evil), text(evil), end("tool_calls")]
    with (
        serving(script, AGAIN) as server,
        terminal(tmp_path, "chat", "--url", server.root) as screen,
    ):
        screen.line("hi")
        screen.expect("Again.")
        assert "\x1b]0;owned" not in screen.seen
        assert "\x1b[2J" not in screen.seen


def test_waiting_is_shown_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """While the prompt is read its progress is shown, while the model thinks the last rows."""
    progress = {"cache": 10, "processed": 110, "total": 1010, "time_ms": 5}
    many = "".join(f"row {number} {'漢' * 30}\n" for number in range(100))
    with (
        serving(
            [{"choices": [], "prompt_progress": progress}, HANG], [thought(many), HANG]
        ) as server,
        terminal(tmp_path, "chat", "--url", server.root) as screen,
    ):
        screen.line("long")
        screen.expect("reading the prompt: 100/1,000 tokens, ")
        screen.stop()
        screen.expect("taken back")
        screen.line("think")
        shown = screen.expect("row 99 ")
        assert "row 95 " in shown
        assert "row 90 " not in shown
        screen.stop()
        screen.expect("thought for")
        assert "\x1b[2K" in screen.seen  # what moved is erased
        screen.line("/reasoning on")
        screen.expect("reasoning is shown")


def test_the_running_cluster_is_found_by_its_record(tmp_path: Path) -> None:
    """Root and key come from the record, without an option."""
    (tmp_path / "keys").write_text("sesame\n")
    state = tmp_path / ".local/state/ggufcluster"
    state.mkdir(parents=True)
    with serving(AGAIN) as server:
        record = ClusterRecord(
            id="x",
            created=0.0,
            wish="w",
            build_id="b",
            head_run="/run",
            root=server.root,
            api_key_file=str(tmp_path / "keys"),
            model="m",
            workers=(),
        )
        (state / "cluster.json").write_bytes(to_json(record))
        done = subprocess.run(
            command("chat", "-q", "-s", "Be short.", "--effort", "none", "hi"),
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=environment(tmp_path),
            cwd=tmp_path,
        )
    assert (done.returncode, done.stdout) == (0, "Again.\n")
    assert server.keys == ["Bearer sesame"]
    assert server.said() == [("system", "Be short."), ("user", "hi")]
    assert server.asked[0]["reasoning_effort"] == "none"


def test_plain_text_moves_nothing(tmp_path: Path) -> None:
    """With --no-color a terminal gets no colours and no cursor movements from us."""
    with (
        serving(HELLO) as server,
        terminal(tmp_path, "chat", "--no-color", "--url", server.root, "hi") as screen,
    ):
        assert screen.leave() == 0
    assert "\x1b" not in screen.seen
    assert "Hello." in screen.seen
    assert "thought for" in screen.seen


def test_a_pipe_gets_the_answer_alone(tmp_path: Path) -> None:
    """Stdout holds the answer's own bytes, stderr all else; --quiet leaves that out."""
    with serving(HELLO, HELLO) as server:
        loud = run(tmp_path, server, "hi", "there")
        quiet = run(tmp_path, server, "-q", "hi")
    assert (loud.returncode, loud.stdout) == (0, "Hello.\n")
    assert "thought for" in loud.stderr
    assert "12.0 tokens/s" in loud.stderr
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "Hello.\n", "")
    assert server.said(0) == [("user", "hi there")]


def test_a_pipe_is_part_of_the_question(tmp_path: Path) -> None:
    """What comes on stdin follows what is on the command line; nothing at all is an error."""
    with serving(AGAIN, AGAIN) as server:
        assert run(tmp_path, server, "what is this?", given="a = 1\n").returncode == 0
        assert run(tmp_path, server, given="just this\n").returncode == 0
        empty = run(tmp_path, server)
    assert server.said(0) == [("user", "what is this?\n\na = 1")]
    assert server.said(1) == [("user", "just this")]
    assert empty.returncode == 3
    assert "no question" in empty.stderr


def test_bytes_that_are_no_text_are_taken(tmp_path: Path) -> None:
    """Odd bytes in a pipe and halves of letters from the server end in no traceback."""
    with serving([text("a\ud83db"), end()]) as server:
        done = subprocess.run(
            command("chat", "--url", server.root, "what is it?"),
            check=False,
            input=b"\xff\xfe\x00binary",
            capture_output=True,
            env=environment(tmp_path),
        )
    assert (done.returncode, done.stdout) == (0, b"a?b\n")
    assert "binary" in server.said()[0][1]


def test_json_is_one_object_for_each_event(tmp_path: Path) -> None:
    """Scripts get every piece, call and result, and the whole answer at the end."""
    (tmp_path / "t.py").write_text(TOOLS)
    script = [call("add", '{"a": 1, "b": 2}'), end("tool_calls")]
    with serving(script, HELLO) as server:
        done = run(tmp_path, server, "--json", "--tools", "t.py", "--allow-tools", "add")
    assert done.returncode == 0
    found = events(done)
    names = [event["event"] for event in found]
    assert names == [
        *("answered", "called", "returned"),
        *("thought", "thought", "said", "said", "answered"),
    ]
    assert found[2] == {
        "event": "returned", "id": "c0", "name": "add", "text": "3", "failed": False
    }  # fmt: skip
    assert found[-1]["content"] == "Hello."
    assert found[-1]["pace"] == {
        "tokens": 12, "tokens_per_second": 12.0, "used": 42, "context": 1000
    }  # fmt: skip


def test_a_tool_that_fails_tells_the_model(tmp_path: Path) -> None:
    """An exception, wrong arguments and an unknown tool are results; the loop goes on."""
    (tmp_path / "t.py").write_text(TOOLS)
    script = [
        call("fail", "{}"),
        call("add", '{"a": "x", "b": 2}', 1),
        call("add", '{"a": 1', 2),
        call("subtract", "{}", 3),
        end("tool_calls"),
    ]
    with serving(script, AGAIN) as server:
        done = run(tmp_path, server, "--tools", "t.py", "--allow-tools", "go")
    assert (done.returncode, done.stdout) == (0, "Again.\n")
    results = [content for role, content in server.said() if role == "tool"]
    assert results[0] == "Error: RuntimeError: out of paper"
    assert "'a' must be an integer" in results[1]
    assert "no JSON object" in results[2]
    assert "no tool 'subtract'; there are: add, fail" in results[3]
    calls = server.asked[-1]["messages"][1]["tool_calls"]
    assert [json.loads(one["function"]["arguments"]) for one in calls][2] == {}


def test_without_a_terminal_nothing_is_run_unasked(tmp_path: Path) -> None:
    """A script that did not allow tools gets none run, and is told how to allow them."""
    (tmp_path / "t.py").write_text(TOOLS)
    script = [call("add", '{"a": 1, "b": 2}'), end("tool_calls")]
    with serving(script, AGAIN) as server:
        done = run(tmp_path, server, "--tools", "t.py", "add")
    assert done.returncode == 0
    assert "--allow-tools" in done.stderr
    assert "adding" not in done.stderr
    assert "did not allow" in server.said()[-1][1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("def f(:\n", "line 1"),
        ("x = 1\nraise RuntimeError('no')\n", "RuntimeError: no (line 2)"),
        ("import os\n", "no public functions"),
        ("def f(x: bytes): ...\n", "bytes, which has no form in JSON"),
        ("def f(x: 'Nobody'): ...\n", "Nobody"),
    ],
)
def test_a_file_of_tools_that_cannot_be_used_is_named(
    tmp_path: Path, content: str, words: str
) -> None:
    """Nothing is asked; the message says which file, where in it, and what."""
    (tmp_path / "t.py").write_text(content)
    with serving() as server:
        done = run(tmp_path, server, "--tools", "t.py", "hi")
    assert done.returncode == 6
    assert "t.py" in done.stderr
    assert words in done.stderr


def test_images_are_left_out_where_nobody_sees_them(tmp_path: Path) -> None:
    """Without vision the question goes alone, with a message; with it the image goes along."""
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n....")
    with serving(AGAIN) as blind:
        done = run(tmp_path, blind, "--image", "a.png", "what is it?")
    assert "no vision loaded" in done.stderr
    assert blind.said() == [("user", "what is it?")]
    with serving(AGAIN, vision=True) as sighted:
        run(tmp_path, sighted, "--image", "a.png", "--save", "c.json", "what is it?")
    parts = sighted.said()[0][1]
    assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,")
    with serving(AGAIN) as blind:
        done = run(tmp_path, blind, "--load", "c.json", "and now?")
    assert "no vision loaded" in done.stderr
    assert "An image was here" in blind.said()[0][1]


def test_what_was_said_before_an_error_is_saved(tmp_path: Path) -> None:
    """The run ends with the error's code, and the file has what came; without any, no file."""
    with serving([text("Half")], 400) as server:
        half = run(tmp_path, server, "--save", "half.json", "hi")
        none = run(tmp_path, server, "--save", "none.json", "hi")
    assert (half.returncode, none.returncode) == (54, 54)
    messages = json.loads((tmp_path / "half.json").read_text())["messages"]
    assert [message["content"] for message in messages] == ["hi", "Half"]
    assert not (tmp_path / "none.json").exists()


def test_a_file_that_is_no_conversation_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    """--load and --save leave other files alone and say why."""
    (tmp_path / "notes").write_text("my notes")
    with serving(AGAIN) as server:
        read = run(tmp_path, server, "--load", "notes", "hi")
        written = run(tmp_path, server, "--save", "notes", "hi")
    assert (read.returncode, written.returncode) == (4, 4)
    assert "is no JSON" in read.stderr
    assert "not replaced" in written.stderr
    assert (tmp_path / "notes").read_text() == "my notes"


def test_one_question_that_is_stopped_ends_with_its_code(tmp_path: Path) -> None:
    """Ctrl-C ends a one-shot run with 130, and the server with it."""
    with serving([text("Once"), HANG]) as server:
        process = subprocess.Popen(
            ["env", "--default-signal=INT", *command("chat", "--url", server.root, "story")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(tmp_path),
            cwd=tmp_path,
        )
        assert process.stdout is not None
        assert process.stdout.read(4) == b"Once"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert server.gone.wait(60)
    assert process.returncode == 130
    assert b"Traceback" not in errors


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://", "http://[::1", "http://a:b"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, url: str) -> None:
    """What is no address is a line and an exit code, not a traceback."""
    done = subprocess.run(
        command("chat", "--url", url, "hi"),
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment(tmp_path),
    )
    assert done.returncode == 3
    assert "is no address" in done.stderr


def test_without_a_cluster_it_says_so(tmp_path: Path) -> None:
    """No record and no --url: the code and the words of status."""
    done = subprocess.run(
        command("chat", "hi"),
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment(tmp_path),
        cwd=tmp_path,
    )
    assert done.returncode == 61
    assert "no cluster is up" in done.stderr


def test_the_key_goes_along(tmp_path: Path) -> None:
    """The key of a file reaches the server, and no output."""
    (tmp_path / "keys").write_text("sesame\n")
    with serving(AGAIN) as server:
        done = run(tmp_path, server, "--api-key-file", "keys", "hi")
    assert server.keys == ["Bearer sesame"]
    assert "sesame" not in done.stdout + done.stderr


def test_a_key_file_that_is_not_there_is_told_by_its_option(tmp_path: Path) -> None:
    """Nobody is asked without the key, and the way out is that command's help."""
    with serving(AGAIN) as server:
        done = run(tmp_path, server, "--api-key-file", "keys", "hi")
    assert done.returncode == 3
    assert "--api-key-file: keys cannot be read: No such file" in done.stderr
    assert "--help" in done.stderr
    assert server.keys == []
