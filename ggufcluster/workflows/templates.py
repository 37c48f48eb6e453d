"""Read a model's chat template, make one of a style from it, and prove it before it is written."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggufcluster import resources
from ggufcluster.adapters.files import replace_file
from ggufcluster.adapters.template_child import MOST_TEMPLATE, render_apart
from ggufcluster.core.gguf import MAGIC, read_header
from ggufcluster.core.model import shard_names
from ggufcluster.core.template_conversations import (
    TALKS,
    THINKING_TALKS,
    TOOL_TALKS,
    Conversation,
    Renderer,
    context_of,
    missing,
    renderer_of,
    request_of,
)
from ggufcluster.core.template_style import (
    M3_FAMILY,
    Style,
    family_of_template,
    make_template,
    style_of,
)
from ggufcluster.core.toolcall_toy import SHAPE
from ggufcluster.core.toy import random_model
from ggufcluster.core.toy_vocabulary import BEGIN_OF_TEXT, END_OF_TURN, THINK_END, THINK_START
from ggufcluster.errors import (
    HeadError,
    HeadStartError,
    LocalFileError,
    ModelMissingError,
    TemplateError,
    TemplateMismatchError,
    TemplateMissingError,
    TemplateRenderError,
)
from ggufcluster.workflows.events import Finished, Note, Progress, Started, Warned, Workflow
from ggufcluster.workflows.scratch_server import ScratchWorld, scratch_server
from ggufcluster.workflows.toy import publish_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.adapters.http import StreamingApi
    from ggufcluster.adapters.remote import Remote

_KEY = "tokenizer.chat_template"
_DEFAULT = "default"
_APPLY_SECONDS = 30.0
_CONTEXT = 512


@dataclass(frozen=True, slots=True)
class FoundTemplate:
    """A chat template and where it was found.

    Attributes:
        text: The template.
        path: The file that holds it.
        name: Its name among those of a GGUF; `default` for the unnamed one.
        names: Every template of that file.
    """

    text: str
    path: str
    name: str = _DEFAULT
    names: tuple[str, ...] = (_DEFAULT,)

    @property
    def origin(self) -> str:
        """File name, and the template's name if there are several."""
        file = Path(self.path).name
        return file if self.names == (_DEFAULT,) else f"{file}, template {self.name}"


def read_gguf_template(path: Path, name: str | None = None) -> FoundTemplate:
    """Read the chat template of a GGUF; of a split one, that of its first shard.

    Args:
        path: Any shard.
        name: Which of several templates; None takes the unnamed one, else `tool_use`, else the
            only one.

    Raises:
        ModelMissingError: The file, or the first shard, is not there.
        NotGgufError: It is no GGUF.
        TruncatedModelError: It ends inside its header.
        TemplateMissingError: It has no template, or none of that name.
    """
    first = path.with_name(shard_names(path.name)[0])
    if not first.is_file():
        raise ModelMissingError("no such file", path=str(first))
    with first.open("rb") as stream:
        header = read_header(stream, path=str(first))
    found = {
        key.removeprefix(_KEY).removeprefix(".") or _DEFAULT: value.value
        for key, value in header.metadata.items()
        if (key == _KEY or key.startswith(f"{_KEY}.")) and isinstance(value.value, str)
    }
    chosen = _choose(tuple(found), name, str(first))
    text = str(found[chosen])
    if not text.strip():
        raise TemplateMissingError("is empty", path=str(first))
    return FoundTemplate(text, str(first), chosen, tuple(found))


def read_template_file(path: Path) -> FoundTemplate:
    """Read a chat template from a file of its own.

    Raises:
        TemplateError: It cannot be read, is no text, is empty, or is a GGUF.
    """
    try:
        with path.open("rb") as file:
            data = file.read(4 * MOST_TEMPLATE + 1)  # a model is no template, and may be huge
    except OSError as error:
        raise TemplateError(f"cannot be read: {error.strerror}", path=str(path)) from error
    if data.startswith(MAGIC):
        raise TemplateError("is a GGUF: name it with --gguf", path=str(path))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise TemplateError("is not UTF-8 text", path=str(path)) from error
    if not text.strip():
        raise TemplateMissingError("is empty", path=str(path))
    return FoundTemplate(text, str(path))


def make_style(found: FoundTemplate, style: Style) -> str:
    """Make a template of a style; raises `TemplateFamilyError` or `TemplateAnchorError`."""
    root = resources.templates()
    blocks = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in root.rglob("*.jinja")
    }
    return make_template(found.text, style, blocks=blocks, origin=found.origin, path=found.path)


def regenerate(
    found: FoundTemplate,
    style: Style,
    out: Path,
    *,
    local: Remote,
    outside: ScratchWorld | None,
    replace: bool = False,
) -> Workflow[str]:
    """Make a template of a style, check it, and write it whole or not at all; return its text.

    Args:
        found: The model's own template.
        style: The style wanted.
        out: Where to write it.
        local: This machine.
        outside: The engine whose renderer must agree; None leaves that check out.
        replace: Overwrite a file that was not made here.

    Raises:
        TemplateError: Of the kind that tells what is wrong; nothing was written.
        LocalFileError: A file of somebody else's stands there.
    """
    if len(found.names) > 1:
        yield Note(f"of {len(found.names)} templates ({', '.join(found.names)}): {found.name}")
    if out.exists() and not replace and style_of(_first_line(out)) is None:
        reason = "exists and was not written by ggufcluster; --force replaces it"
        raise LocalFileError(reason, path=str(out))
    text = make_style(found, style)
    yield from check(FoundTemplate(text, str(out)), local=local, outside=outside)
    replace_file(out, text.encode())
    return text


def check(
    found: FoundTemplate, *, local: Remote, outside: ScratchWorld | None
) -> Workflow[tuple[str, ...]]:
    """Render every conversation in the sandbox and by llama-server; return their names.

    Raises:
        TemplateRenderError: One fails, or the prompt lacks what was said.
        TemplateMismatchError: The two renderers disagree.
        TemplateError: It takes too much time or memory.
    """
    talks = _talks(found.text)
    yield Started("Rendering in a sandbox")
    prompts = yield from _sandboxed(found, talks, Renderer(), local)
    yield Finished("Rendering in a sandbox", f"{len(talks)} conversations")
    for talk, prompt in zip(talks, prompts, strict=True):
        yield from _check_thinking(found, talk, prompt)
    if outside is not None:
        yield from _compare(found, talks, local=local, outside=outside)
    return tuple(talk.name for talk in talks)


def _choose(names: tuple[str, ...], wanted: str | None, path: str) -> str:
    if not names:
        raise TemplateMissingError("the model brings no chat template", path=path)
    if wanted is None:
        wanted = next((name for name in (_DEFAULT, "tool_use") if name in names), None)
        if wanted is None and len(names) == 1:
            return names[0]
    if wanted not in names:
        told = f"none is named {wanted}" if wanted else "none is the default"
        raise TemplateMissingError(f"has {', '.join(names)}; {told}", path=path)
    return wanted


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline(1000)


def _talks(text: str) -> tuple[Conversation, ...]:
    tools = TOOL_TALKS if "tools" in text and "tool_calls" in text else ()
    thinking = THINKING_TALKS if family_of_template(text) == M3_FAMILY else ()
    return TALKS + tools + thinking


def _sandboxed(
    found: FoundTemplate, talks: Sequence[Conversation], renderer: Renderer, local: Remote
) -> Workflow[list[str]]:
    contexts = [context_of(talk, renderer) for talk in talks]
    answers = render_apart(local, found.text, contexts, path=found.path)
    for talk, answer in zip(talks, answers, strict=True):
        if reason := answer.failure or missing(talk, answer.text):
            raise TemplateRenderError(talk.name, reason=reason, path=found.path)
    yield Progress("Rendering in a sandbox", len(talks), len(talks))
    return [answer.text for answer in answers]


def _check_thinking(found: FoundTemplate, talk: Conversation, prompt: str) -> Workflow[None]:
    if talk.thinking is None:
        return
    shown = {THINK_START: "enabled", THINK_END: "disabled"}
    got = next((mode for tag, mode in shown.items() if prompt.endswith(tag)), "adaptive")
    if got == talk.thinking:
        return
    reason = f"the prompt says {got}, not {talk.thinking}"
    if style_of(found.text) is not None:
        raise TemplateRenderError(talk.name, reason=reason, path=found.path)
    yield Warned(f"{talk.name} goes unheard ({reason}); `template regen` adds what is needed")


def _compare(
    found: FoundTemplate,
    talks: Sequence[Conversation],
    *,
    local: Remote,
    outside: ScratchWorld,
) -> Workflow[None]:
    label = "Rendering by llama-server"
    yield Started(label)
    with tempfile.TemporaryDirectory(prefix="ggufcluster-") as folder:
        file = Path(folder) / "template.jinja"
        file.write_text(found.text, encoding="utf-8", newline="")
        model = publish_model(random_model("", SHAPE), Path(folder) / "toy.gguf")
        try:
            with scratch_server(outside, model, template=file, context=_CONTEXT) as api:
                theirs = yield from _asked(found, talks, api, label)
                capabilities = api.get("/props")["chat_template_caps"]
        except HeadStartError as error:
            name = talks[0].name
            reason = f"llama-server: {error.reason}"
            raise TemplateRenderError(name, reason=reason, path=found.path) from error
    renderer = renderer_of(capabilities, bos=BEGIN_OF_TEXT, eos=END_OF_TURN)
    ours = yield from _sandboxed(found, talks, renderer, local)
    for talk, one, other in zip(talks, ours, theirs, strict=True):
        if one != other:
            raise TemplateMismatchError(
                talk.name, excerpt=first_difference(one, other), path=found.path
            )
    yield Finished(label, f"{len(talks)} prompts, equal byte for byte")


def _asked(
    found: FoundTemplate, talks: Sequence[Conversation], api: StreamingApi, label: str
) -> Workflow[list[str]]:
    prompts = []
    for done, talk in enumerate(talks, start=1):
        try:
            answer: Any = api.post("/apply-template", request_of(talk), timeout=_APPLY_SECONDS)
        except HeadError as error:
            reason = f"llama-server: {error}"
            raise TemplateRenderError(talk.name, reason=reason, path=found.path) from error
        prompts.append(str(answer["prompt"]))
        yield Progress(label, done, len(talks))
    return prompts


def first_difference(ours: str, theirs: str) -> tuple[str, ...]:
    """Show where two prompts part, one line each."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    place = next((n for n, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
    start = max(0, place - 20)
    return (
        f"they part after {place} letters",
        f"sandbox:      {ours[start : place + 40]!r}",
        f"llama-server: {theirs[start : place + 40]!r}",
    )
