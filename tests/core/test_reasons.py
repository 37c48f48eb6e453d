"""Why a plan is what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import pytest

from ggufcluster.core.placement import Device
from ggufcluster.core.plan import make_plan
from ggufcluster.core.reasons import reasons
from ggufcluster.core.units import GIB
from ggufcluster.core.wish import Wish
from tests.core.m3_model import m3_facts

if TYPE_CHECKING:
    from ggufcluster.core.model import ModelFacts

MODEL = m3_facts()
FAR = Device("RPC0", "b", 400 * GIB, 400 * GIB, chip="NVIDIA GB10")
OWN = replace(FAR, name="CUDA0", host="head")


def told(
    wish: Wish | None = None, model: ModelFacts = MODEL, devices: tuple[Device, ...] = (FAR, OWN)
) -> str:
    """Return the reasons of a plan as one text."""
    plan = make_plan(
        wish or Wish(workers=("b",)), model, PurePosixPath("/m"), devices=devices, endpoints=("x",)
    )
    return "\n".join(reasons(plan))


def test_each_cut_is_explained() -> None:
    """The first layer of each further device is named with how full both sides are."""
    text = told()
    assert "starts on head (CUDA0) because layers 0-" in text
    assert text.count(" %") == 2
    assert "because layer 0 fills" in told(model=m3_facts(layers=2))


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (None, "the largest usual one that fits"),
        ("max", "context 1,048,576: the most that the model was made for"),
        (1 << 21, "instead of 2,097,152: the model was made for no more"),
    ],
)
def test_the_context_is_explained(context: int | str | None, words: str) -> None:
    """Chosen, largest and cut contexts have a reason each; one that was asked for needs none."""
    assert words in told(Wish(workers=("b",), context=context))
    assert "context" not in told(Wish(workers=("b",), context=8192))


def test_the_path_of_attention_is_explained() -> None:
    """Kernels, a CPU among the devices, and a file without indexer are told apart."""
    assert "on our kernels" in told()
    assert "b computes on its CPU" in told(devices=(replace(FAR, gpu=False), OWN))
    assert "no indexer tensors" in told(model=m3_facts(indexer=False))


def test_headroom_slots_and_order_are_told() -> None:
    """What stays free, how many cells the slots have, and why the head's GPU is last."""
    text = told(Wish(workers=("b",), parallel=2, context=4096))
    assert "9.00 GiB stay free on b" in text
    assert "2 slots of 4,096 tokens: 8,192 cells" in text
    assert "CUDA0 comes last" in text
    assert "comes last" not in told(devices=(FAR, replace(FAR, name="RPC1")))


def test_an_estimate_is_called_one() -> None:
    """Only MiniMax-M3 was checked against the engine."""
    assert "are an estimate" in told(model=replace(MODEL, architecture="llama"))
    assert "estimate" not in told()
