"""List known models, with what the hub says of them now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ggufcluster.core.download.presets import PRESETS, Preset, live
from ggufcluster.errors import DownloadError
from ggufcluster.workflows.events import Finished, Progress, Started, Warned, Workflow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ggufcluster.adapters.hub import Hub

_LABEL = "Asking the hub"


def known_models(hub: Hub | None, presets: Sequence[Preset] = PRESETS) -> Workflow[list[Preset]]:
    """Return the known models; what the hub does not tell stays as it was reported.

    Args:
        hub: Where to ask for quantisations and sizes; None to ask nobody.
        presets: The models.
    """
    if hub is None or hub.is_offline:
        return list(presets)
    yield Started(_LABEL)
    models: list[Preset] = []
    for number, preset in enumerate(presets):
        yield Progress(_LABEL, number, len(presets))
        try:
            found = live(preset, hub.listing(preset.repository, "main"))
        except DownloadError as error:
            yield Warned(str(error))
            found = ()
        models += found or (preset,)
    yield Finished(_LABEL)
    return models
