"""Bounds on the speed of a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from ggufcluster.core.expectation import Expectation, Lack, expect
from ggufcluster.core.placement import Device
from ggufcluster.core.plan import Plan, make_plan
from ggufcluster.core.units import GIB
from ggufcluster.core.wish import Wish
from tests.core.m3_model import m3_facts

MODEL = m3_facts()
RATE = 12.5e9


def spark(name: str, host: str) -> Device:
    """Make a device like a GB10 with plenty of room."""
    return Device(name, host, free=400 * GIB, total=400 * GIB, chip="NVIDIA GB10")


def planned(wish: Wish | None = None, devices: list[Device] | None = None) -> Plan:
    """Plan M3 on a worker and the head's own GPU, or what is given."""
    return make_plan(
        wish or Wish(workers=("b",)),
        MODEL,
        PurePosixPath("/m"),
        devices=[spark("RPC0", "b"), spark("CUDA0", "head")] if devices is None else devices,
        endpoints=("10.20.20.2:50052",),
    )


def expected(plan: Plan, link: float = RATE) -> Expectation:
    """Return the expectation of a plan that has one."""
    found = expect(plan, links={"b": link} if link else {})
    assert found is not None
    return found


def rate(value: float | None) -> float:
    """Return a rate that is known."""
    assert value is not None
    return value


def test_answers_are_bound_by_the_bytes_of_a_token() -> None:
    """Active weights over the bandwidth is the time of a token, however they are split."""
    found = expected(planned(), link=1e18)
    size = sum(MODEL.active_bytes(n) for n in range(60)) + MODEL.output_bytes
    assert found.bytes_per_token == size
    assert rate(found.decode.tokens_per_second) == pytest.approx(273e9 / size)
    assert "memory of" in found.decode.binds
    assert 12 * GIB < size < 14 * GIB


def test_a_full_context_reads_the_cache_as_well() -> None:
    """Sparse layers read all index keys and 16 blocks, full attention reads everything."""
    sparse, dense = (
        expected(planned(Wish(workers=("b",), msa=msa))).decode_full for msa in ("auto", "dense")
    )
    start = rate(expected(planned()).decode.tokens_per_second)
    assert start > rate(sparse.tokens_per_second) > rate(dense.tokens_per_second)
    extra = 1 / rate(dense.tokens_per_second) - 1 / start
    cache = sum(MODEL.kv_token_bytes(n, kv_type="q8_0") for n in range(60)) * 131_072
    assert extra == pytest.approx(cache / 273e9)


def test_a_slow_link_binds_prompts() -> None:
    """Every token's hidden state goes to the worker and back: 48 KiB over a slow port bind."""
    found = expected(planned(), link=1e6)
    assert found.prefill.binds == "the link to b"
    assert rate(found.prefill.tokens_per_second) == pytest.approx(1e6 / (2 * 6144 * 4))


def test_a_worker_that_ends_the_pipeline_sends_logits() -> None:
    """With the last stage on a worker each answer carries the whole vocabulary back."""
    near = expected(planned(), link=1e6).decode
    far = expected(planned(devices=[spark("CUDA0", "head"), spark("RPC0", "b")]), link=1e6).decode
    difference = 1 / rate(far.tokens_per_second) - 1 / rate(near.tokens_per_second)
    assert difference == pytest.approx((200_064 - 6144) * 4 / 1e6, rel=1e-6)


def test_prompts_on_a_weak_chip_are_bound_by_arithmetic() -> None:
    """With many tokens at once the multiplications of a chip take longer than its weights."""
    wish = Wish(workers=("b",), ubatch=65_536)
    found = expected(planned(wish), link=1e18)
    assert found.prefill.binds.startswith("arithmetic of")
    assert rate(found.prefill.tokens_per_second) < 250e12 / 23e9


def test_what_is_unknown_is_named_and_bounds_nothing() -> None:
    """An unknown chip and an unknown link leave the bound to the rest; each is named once."""
    devices = [replace(spark("RPC0", "b"), chip="?"), spark("CUDA0", "head")]
    found = expected(planned(devices=devices), link=0.0)
    assert found.decode.unknown == (Lack("?", "b"), Lack("link", "b"))
    assert found.decode.binds == "memory of CUDA0 on head"
    nothing = expected(planned(devices=[replace(devices[0], host="c")]), link=0.0)
    assert nothing.decode.tokens_per_second is None


def test_without_a_placement_there_is_nothing_to_expect() -> None:
    """A head of which nothing is known gives no bound."""
    assert expect(planned(devices=[]), links={}) is None
