"""A user's project, for the type checker only: `scripts/check` fails if our types change.

An ignored error that is no longer one is an error too, so the misspelled names prove that they are
found.
"""

from __future__ import annotations

from typing import assert_type

from ggufcluster import Cluster, Llama, Steps
from ggufcluster.workflows.events import Event


def main() -> str:
    """Use every public name as its documentation says, and some as it does not."""
    steps: Steps[Cluster] = Cluster.starting(["local"], model="m.gguf", ctx="max")
    for event in steps:
        assert_type(event, Event)
    with steps.result() as cluster:
        assert_type(cluster.status().healthy, bool)
        cluster.client().chat.completions.create(model="", messages=[])
    with Llama("m.gguf", workers=["local"], n_ctx=4096) as model:
        assert_type(model.tokenize(b"x"), list[int])
    Cluster.up(["local"], kv_tipe="f16")  # type: ignore[call-arg]
    Llama("m.gguf", workers=3)  # type: ignore[arg-type]
    return cluster.base_url
