"""Chat templates on the real llama-server: its renderer and the sandbox agree byte for byte."""

from __future__ import annotations

import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ggufcluster.adapters.http import HttpApi
from ggufcluster.adapters.local import LocalRemote
from ggufcluster.adapters.ports import free_port
from ggufcluster.core.engine import PROGRAM_VARIABLES
from ggufcluster.core.paths import paths_from_env
from ggufcluster.core.template_style import Style
from ggufcluster.errors import HeadStartError, TemplateMismatchError, TemplateRenderError
from ggufcluster.workflows.events import drain
from ggufcluster.workflows.scratch_server import ScratchWorld, scratch_server
from ggufcluster.workflows.source import fetch_archive, read_vendor
from ggufcluster.workflows.templates import FoundTemplate, check, regenerate
from tests.conftest import _REAL_ENVIRONMENT
from tests.waiting import wait_for

if TYPE_CHECKING:
    from ggufcluster.core.engine import Engine

pytestmark = pytest.mark.engine

SHAPE = (Path(__file__).parents[1] / "data" / "templates" / "m3-shape.jinja").read_text()


def world(engine: Engine) -> ScratchWorld:
    """This machine and the engine under test."""
    return ScratchWorld(LocalRemote(), engine, HttpApi, free_port, time.monotonic, time.sleep)


@pytest.fixture(scope="module")
def real_template() -> str:
    """MiniMax-M3's own template, out of the pinned source."""
    pin = read_vendor().pin
    cache = Path(paths_from_env(_REAL_ENVIRONMENT).cache)
    archive = drain(fetch_archive(LocalRemote(), pin, cache=cache))
    member = f"{pin.top_folder}/{pin.sdist_subdir}/models/templates/MiniMax-M3.jinja"
    with tarfile.open(archive) as tar:
        content = tar.extractfile(member)
        assert content is not None
        return content.read().decode()


@pytest.mark.parametrize("style", Style, ids=lambda style: style.value)
def test_the_models_own_template_passes_in_both_styles(
    engine: Engine, real_template: str, tmp_path: Path, style: Style
) -> None:
    """Three places are found in the real template; both renderers give equal prompts."""
    found = FoundTemplate(real_template, "/m3.gguf")
    out = tmp_path / "t.jinja"
    outside = world(engine)
    text = drain(regenerate(found, style, out, local=outside.local, outside=outside))
    assert out.read_text() == text
    assert len(text) > len(real_template) / 2


def test_the_stand_in_renders_alike_too(engine: Engine) -> None:
    """The stand-in for the real template passes as it is."""
    outside = world(engine)
    names = drain(check(FoundTemplate(SHAPE, "/t"), local=outside.local, outside=outside))
    assert "two calls and an error" in names


def test_a_difference_between_the_renderers_is_shown(engine: Engine) -> None:
    """A filter that the two know differently is found and the place is shown."""
    text = SHAPE.replace("{{- bos_token ~ 'developer\\n' }}", "{{- bos_token ~ 'straße' | upper }}")
    assert text != SHAPE
    outside = world(engine)
    with pytest.raises(TemplateMismatchError) as caught:
        drain(check(FoundTemplate(text, "/t"), local=outside.local, outside=outside))
    assert any("STRASSE" in line for line in caught.value.excerpt)


def test_what_llama_server_cannot_render_is_told(engine: Engine) -> None:
    """A template that jinja2 renders and llama-server does not is refused, naming llama-server."""
    text = SHAPE + "{{- '' | xmlattr_of_nobody if false }}{%- set x = {'a': 1} | dictsort -%}"
    text = text.replace("{{- '' | xmlattr_of_nobody if false }}", "{{- {'a': 1} | xmlattr }}")
    outside = world(engine)
    with pytest.raises(TemplateRenderError, match="llama-server"):
        drain(check(FoundTemplate(text, "/t"), local=outside.local, outside=outside))


def test_a_scratch_server_that_cannot_start_says_why(engine: Engine, tmp_path: Path) -> None:
    """A file that is no model ends the start at once, with the server's own words; none is left."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF" + bytes(100))
    with (
        pytest.raises(HeadStartError, match="did not start"),
        scratch_server(world(engine), model) as _api,
    ):
        pass
    wait_for(lambda: not _servers_of(model))


def test_a_scratch_server_is_gone_after_its_block(engine: Engine, toys: dict[str, Path]) -> None:
    """While the block runs a server answers; afterwards no process of it is left."""
    with scratch_server(world(engine), toys["random"], context=512) as api:
        assert api.health() == "ok"
        servers = set(_servers_of(toys["random"]))
        assert servers
    wait_for(lambda: servers.isdisjoint(_servers_of(toys["random"])))
    assert api.health() == "down"


def test_a_scratch_server_gets_the_engines_variables(
    engine: Engine, toys: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server itself has what all programs of an engine need, which we have not."""
    for name in PROGRAM_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with scratch_server(world(engine), toys["random"], context=512):
        (given,) = (
            Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
            for pid in _servers_of(toys["random"])
            if Path(f"/proc/{pid}/exe").resolve().name == "llama-server"
        )
    assert {f"{name}={text}" for name, text in PROGRAM_VARIABLES.items()} <= set(given)


def _servers_of(model: Path) -> list[str]:
    """The processes that have a model file in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(model).encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue
    return found
