"""The record of a cluster."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ggufcluster.core.record import ClusterRecord, ShareRecord, WorkerRecord, from_json, to_json
from ggufcluster.errors import RecordError

WORKER = WorkerRecord("a", "me@a:22", "/run/c/a", "10.20.20.2", 50052, 1e-4, 1e9)
RECORD = ClusterRecord(
    id="c",
    created=1.5,
    wish="{}",
    build_id="b",
    head_run="/run/c/head",
    root="http://127.0.0.1:8080",
    api_key_file=None,
    model="M",
    workers=(WORKER, replace(WORKER, name="b")),
    shares=(ShareRecord("RPC0", "a", 0, 30, 1 << 30),),
    ready=True,
)


def test_a_record_survives_being_written() -> None:
    """Reading what was written gives an equal record."""
    assert from_json(to_json(RECORD), source="x") == RECORD


def test_one_worker_is_replaced_by_name() -> None:
    """The other workers and their order stay."""
    changed = RECORD.with_worker(replace(WORKER, port=50060))
    assert [worker.port for worker in changed.workers] == [50060, 50052]
    assert changed.workers[0].endpoint == "10.20.20.2:50060"


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b'"text"', b"[]", b"{}", b"\xff\xfe", to_json(RECORD)[:-20]],
    ids=["empty", "null", "text", "list", "object", "binary", "cut"],
)
def test_a_damaged_record_is_named(data: bytes) -> None:
    """Whatever is in the file, the error says which file it is."""
    with pytest.raises(
        RecordError, match=r"^/s/cluster\.json: the record of the cluster is damaged"
    ):
        from_json(data, source="/s/cluster.json")


def test_fields_of_another_version_are_damage() -> None:
    """An unknown field is not ignored: it may be what a later version needs."""
    fields = json.loads(to_json(RECORD)) | {"surprise": 1}
    with pytest.raises(RecordError, match="surprise"):
        from_json(json.dumps(fields).encode(), source="x")


def test_another_format_is_told_apart_from_damage() -> None:
    """A record of another version is not called damaged."""
    fields = json.loads(to_json(RECORD)) | {"format": 99}
    with pytest.raises(RecordError, match="another version"):
        from_json(json.dumps(fields).encode(), source="x")
