"""One run of the chat: a single question, or lines from a person until they leave."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggufcluster.cli.interrupts import Interrupts
from ggufcluster.cli.output import Output
from ggufcluster.core import conversation as saved
from ggufcluster.core.chat_command import (
    ChatCommand,
    UnknownCommandError,
    completions,
    help_lines,
    parse_line,
)
from ggufcluster.core.picture import data_url
from ggufcluster.core.terminal_text import harmless
from ggufcluster.errors import ConfigError, GgufClusterError, LocalFileError
from ggufcluster.wiring import chat_lines, chat_tools, save_file, streaming_api
from ggufcluster.workflows.chat import Chat, Tools, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ggufcluster.cli.chat_view import View
    from ggufcluster.core.secret import Secret
    from ggufcluster.core.toolcall_answer import AnswerCall

_WHOLE_LETTERS = 300


def begin_chat(
    server: tuple[str, Secret | None],
    options: Mapping[str, Any],
    *,
    system: str,
    load: Path | None,
) -> Chat:
    """Begin a conversation with the server of a root and key, or go on with a saved one.

    Raises:
        HeadError: The server does not answer.
        LocalFileError: The file cannot be read or holds no conversation.
    """
    conversation = _read_conversation(load) if load else saved.Conversation()
    conversation.system = system or conversation.system
    chat = Chat(streaming_api(*server), options=options, conversation=conversation)
    chat.connect()
    return chat


class Session:
    """Joins a chat, its view and the person at the keyboard.

    Args:
        chat: The conversation.
        view: Where it is shown.
        as_json: Whether errors are JSON too.
    """

    def __init__(self, chat: Chat, view: View, *, as_json: bool) -> None:
        self._chat = chat
        self._view = view
        self._output = Output(as_json=as_json)
        self._lines = chat_lines(completions)
        self._interrupts = Interrupts()
        self._images: list[str] = []
        self._trusted: set[str] = set()
        self._commands: dict[str, Callable[[str], None]] = {
            "help": self._help,
            "new": self._new,
            "undo": self._undo,
            "system": self._system,
            "reasoning": self._reasoning,
            "tools": self._tools,
            "image": lambda name: self.attach(Path(name).expanduser()),
            "save": lambda name: self.save(Path(name).expanduser()),
            "load": self._load,
        }

    def offer(self, path: Path, *, allowed: bool) -> None:
        """Offer the functions of a Python file to the model.

        Args:
            path: The file; it is run.
            allowed: Whether they run without asking.

        Raises:
            ToolFileError: It cannot be used.
        """
        toolbox = chat_tools(path)
        known = toolbox.tools.keys()

        def may_run(call: AnswerCall) -> bool:
            # What does not exist does not run: the model is told so without asking anybody.
            return allowed or call.name not in known or self._is_allowed(call)

        self._chat.tools = Tools(toolbox.schemas, toolbox.run, may_run)

    def attach(self, path: Path) -> None:
        """Send an image with the next question, or say that the server cannot see it.

        Raises:
            LocalFileError: It cannot be read, or is no image.
        """
        if not self._chat.facts.vision:
            self._view.remark(
                f"{path} is left out: this server has no vision loaded"
                " (llama-server loads it with --mmproj FILE)"
            )
            return
        try:
            self._images.append(data_url(path.read_bytes()))
        except OSError as error:
            raise LocalFileError(error.strerror or str(error), path=str(path)) from error
        except ValueError as error:
            raise LocalFileError(str(error), path=str(path)) from None

    def save(self, path: Path) -> None:
        """Write the conversation to a file; only another conversation is replaced.

        Raises:
            LocalFileError: It cannot be written, or holds something else.
        """
        if path.exists():
            try:
                _read_conversation(path)
            except LocalFileError as error:
                reason = f"is not replaced: it {error.reason}"
                raise LocalFileError(reason, path=str(path)) from None
        try:
            save_file(path, saved.to_json(self._chat.conversation))
        except OSError as error:
            raise LocalFileError(error.strerror or str(error), path=str(path)) from error

    def once(self, question: str) -> None:
        """Put one question.

        Raises:
            ConfigError: It is empty.
            HeadError: The server refuses or breaks off.
        """
        if not question:
            raise ConfigError("there is no question, here or on stdin", source="chat")
        self._drive(self._chat.ask(question, self._images))

    def talk(self) -> None:
        """Take lines until the person leaves; an error ends a turn, not the chat."""
        self._view.remark("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves")
        with self._interrupts.open():
            while (line := self._read()) is not None:
                try:
                    if not self._take(line):
                        return
                except UnknownCommandError as error:
                    self._view.remark(str(error))
                except GgufClusterError as error:
                    self._output.error(error)

    def _read(self) -> str | None:
        while True:
            self._interrupts.forget()
            try:
                with self._interrupts.stoppable():
                    return self._lines.read("> ")
            except KeyboardInterrupt:
                self._view.remark("\n(Ctrl-D leaves)")
            except EOFError:
                self._view.remark("")
                return None

    def _take(self, line: str) -> bool:
        """Act on one line; return whether the chat goes on."""
        found = parse_line(line.strip())
        if isinstance(found, ChatCommand):
            if found.name == "exit":
                return False
            self._commands[found.name](found.argument)
        elif found:
            images, self._images = self._images, []
            before = len(self._chat.conversation.messages)
            try:
                self._drive(self._chat.ask(found, images))
            except GgufClusterError as error:
                if len(self._chat.conversation.messages) == before:
                    error.add_note("the question was taken back; the up arrow brings it again")
                raise
        return True

    def _drive(self, turn: Turn) -> None:
        """Show a turn to its end; Ctrl-C goes to the turn, which then says what it kept."""
        self._view.begin()
        try:
            with closing(turn):
                while True:
                    try:
                        with self._interrupts.stoppable():
                            event = next(turn)
                    except KeyboardInterrupt:
                        event = turn.throw(KeyboardInterrupt())
                    self._view.show(event)
        except (StopIteration, KeyboardInterrupt):
            pass
        finally:
            self._view.end()

    def _is_allowed(self, call: AnswerCall) -> bool:
        if call.name in self._trusted:
            return True
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self._view.remark("it is not run: nobody can be asked; --allow-tools allows all")
            return False
        if self._view.quiet or len(call.arguments) > _WHOLE_LETTERS:
            # Nobody should allow what they were not shown.
            self._view.remark(harmless(call.arguments))
        answer = ""
        while answer not in {"y", "yes", "n", "no", "a", "always"}:
            try:
                prompt = f"run {harmless(call.name)}? [y]es, [n]o, [a]lways: "
                answer = self._lines.read(prompt, keep=False).strip().lower()
            except EOFError:
                answer = "no"
        if answer in {"a", "always"}:
            self._trusted.add(call.name)
        return answer in {"y", "yes", "a", "always"}

    def _help(self, _argument: str) -> None:
        rows = help_lines()
        width = max(len(name) for name, _ in rows) + 2
        lines = [f"{name:{width}}{what}" for name, what in rows]
        self._view.remark("\n".join([*lines, "A line that ends with \\ goes on in the next."]))

    def _new(self, _argument: str) -> None:
        self._chat.conversation.clear()
        self._images.clear()
        self._view.remark("a new conversation")

    def _undo(self, _argument: str) -> None:
        text = self._chat.conversation.undo()
        self._view.remark("there is nothing to undo" if text is None else f"taken back: {text}")

    def _system(self, argument: str) -> None:
        if argument:
            self._chat.conversation.system = "" if argument == "-" else argument
        self._view.remark(self._chat.conversation.system or "there is no system message")

    def _reasoning(self, argument: str) -> None:
        if argument in {"on", "off"}:
            self._view.show_reasoning = argument == "on"
            self._view.remark(f"reasoning is {'shown' if argument == 'on' else 'folded'}")
        else:
            self._view.remark(self._view.reasoning or "there was no reasoning")

    def _tools(self, _argument: str) -> None:
        schemas = self._chat.tools.schemas if self._chat.tools else ()
        lines = [
            f"{one['function']['name']}: {one['function']['description'].partition(chr(10))[0]}"
            for one in schemas
        ]
        self._view.remark("\n".join(lines) or "there are no tools; --tools FILE.py offers some")

    def _load(self, name: str) -> None:
        found = _read_conversation(Path(name).expanduser())
        self._chat.resume(found)
        self._view.remark(f"{len(found.messages)} messages")


def _read_conversation(path: Path) -> saved.Conversation:
    try:
        return saved.from_json(path.read_bytes())
    except OSError as error:
        raise LocalFileError(error.strerror or str(error), path=str(path)) from error
    except saved.ConversationFormError as error:
        raise LocalFileError(str(error), path=str(path)) from None
