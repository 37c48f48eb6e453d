"""Known models, with what a hub says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufcluster.adapters.hub import HuggingFaceHub
from ggufcluster.core.download.presets import Preset
from ggufcluster.testing import HubServer
from ggufcluster.workflows.catalogue import known_models
from ggufcluster.workflows.events import Warned, drain

if TYPE_CHECKING:
    from pathlib import Path

HERE = Preset("me/here", None, has_indexer=True, size=None)
GONE = Preset("me/gone", "Q1", has_indexer=False, size=5)


def test_the_hub_is_asked_and_what_it_lacks_stays_as_reported(tmp_path: Path) -> None:
    """A repository that is gone is warned of and listed as it was known."""
    with HubServer() as server:
        server.publish("me/here", {"m-Q4_0.gguf": b"12345678"})
        hub = HuggingFaceHub(endpoint=server.root, cache=tmp_path)
        events = list(known_models(hub, (HERE, GONE)))
        models = drain(known_models(hub, (HERE, GONE)))
    assert [event.text for event in events if isinstance(event, Warned)]
    assert [(model.quant, model.size) for model in models] == [("Q4_0", 8), ("Q1", 5)]


def test_nobody_needs_to_be_asked() -> None:
    """Without a hub the reported facts are the answer."""
    assert drain(known_models(None, (HERE, GONE))) == [HERE, GONE]
