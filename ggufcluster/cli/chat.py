"""chat: talk with the running cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ggufcluster.cli import options

Question = Annotated[list[str] | None, typer.Argument(metavar="QUESTION", help="Ask this and end.")]
System = Annotated[str, typer.Option("--system", "-s", metavar="TEXT", help="System message.")]
Load = Annotated[Path | None, typer.Option(metavar="FILE", help="Go on with a saved conversation.")]
Images = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="Image for the first question.")
]
Save = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the conversation there at the end.")
]
ToolFile = Annotated[
    Path | None, typer.Option(metavar="FILE.py", help="Its functions are tools. It is run.")
]
AllowTools = Annotated[bool, typer.Option("--allow-tools", help="Run tools without asking.")]
Effort = Annotated[
    str | None, typer.Option(metavar="LEVEL", help="reasoning_effort; none: no thinking.")
]
MaxTokens = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Most tokens of an answer.")
]
ShowReasoning = Annotated[bool, typer.Option("--show-reasoning", help="Do not fold reasoning.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="Plain text, nothing that moves.")]
EventsAsJson = Annotated[
    bool, typer.Option("--json", help="One JSON object a line for each event.")
]
AnswerAlone = Annotated[bool, typer.Option("--quiet", "-q", help="The answer alone.")]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(help=options.help_of(chat))(chat)


def chat(
    question: Question = None,
    *,
    url: options.Url = None,
    api_key_file: options.ApiKeyFile = None,
    system: System = "",
    load: Load = None,
    image: Images = None,
    save: Save = None,
    tools: ToolFile = None,
    allow_tools: AllowTools = False,
    effort: Effort = None,
    max_tokens: MaxTokens = None,
    show_reasoning: ShowReasoning = False,
    no_color: NoColor = False,
    as_json: EventsAsJson = False,
    quiet: AnswerAlone = False,
) -> None:
    """Talk with the running cluster.

    Without a question it reads lines from the terminal; /help lists its
    commands, Ctrl-C stops an answer, Ctrl-D leaves. What comes through a pipe
    is one question, added to the one on the command line. The answer goes to
    stdout, all else to stderr.

    Examples:
      ggufcluster chat
      ggufcluster chat --tools my_tools.py
      git diff | ggufcluster chat "Write a commit message."
    """
    from ggufcluster.cli.chat_session import Session, begin_chat
    from ggufcluster.cli.chat_view import view_of
    from ggufcluster.cli.server import find_server

    fields = {"reasoning_effort": effort, "max_tokens": max_tokens}
    talk = begin_chat(
        find_server(url, api_key_file),
        {name: value for name, value in fields.items() if value is not None},
        system=system,
        load=load,
    )
    view = view_of(as_json=as_json, plain=no_color, quiet=quiet, show_reasoning=show_reasoning)
    session = Session(talk, view, as_json=as_json)
    if tools is not None:
        session.offer(tools, allowed=allow_tools)
    for path in image or ():
        session.attach(path)
    asked = _asked(question)
    try:
        if asked is not None:
            session.once(asked)
        else:
            session.talk()
    finally:
        # Also after an error or Ctrl-C: what tools have done by then has happened.
        if save is not None and talk.conversation.messages:
            session.save(save)


def _asked(words: list[str] | None) -> str | None:
    """Return the question of the command line and of a pipe, None if a person is to type."""
    typed = sys.stdin is not None and sys.stdin.isatty()
    piped = b"" if sys.stdin is None or typed else sys.stdin.buffer.read()
    parts = (" ".join(words or ()).strip(), piped.decode(errors="replace").strip())
    if any(parts):
        return "\n\n".join(part for part in parts if part)
    return None if typed else ""
