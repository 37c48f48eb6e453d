"""Add the indexer of the original MiniMax-M3 to a GGUF that was converted without it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ggufcluster.adapters.files import (
    disk_full_as_error,
    new_partial_folder,
    publish,
    remove_stale_partials,
    remove_tree,
    require_space,
    sync_folder,
)
from ggufcluster.core.ggml_types import tensor_bytes
from ggufcluster.core.gguf import DEFAULT_ALIGNMENT
from ggufcluster.core.gguf_write import head, padded, pair
from ggufcluster.core.graft import (
    CONFIG,
    IndexerTensor,
    first_pairs,
    indexer_numbers,
    indexer_tensors,
    new_names,
    require_graftable,
    split_keys,
)
from ggufcluster.core.inspection import Inspection, inspect_model
from ggufcluster.core.m3_tensors import M3Shape, read_shape
from ggufcluster.core.model import ModelKind
from ggufcluster.core.safetensors import to_f32
from ggufcluster.core.units import size_text
from ggufcluster.errors import GraftError
from ggufcluster.workflows.events import Finished, Progress, Started, Unit, Workflow, drain
from ggufcluster.workflows.model_files import LocalFile, read_shards, require_files
from ggufcluster.workflows.models import find_model, shard_paths
from ggufcluster.workflows.originals import Originals, Place, find_tensors, require_small

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from ggufcluster.core.gguf import TensorInfo
    from ggufcluster.core.shards import Shard

_CHUNK = 4 << 20
_FETCH = "Fetching the indexer"
_COPY = "Writing the first shard"


@dataclass(frozen=True, slots=True)
class Graft:
    """What is to be done.

    Attributes:
        paths: Files of the old set.
        shards: Their headers.
        numbers: The five numbers of sparse attention.
        tensors: Tensors of the new shard.
        places: Where each lies in the original.
    """

    paths: list[Path]
    shards: list[Shard]
    numbers: dict[str, int]
    tensors: list[IndexerTensor]
    places: Mapping[str, Place]

    @property
    def total(self) -> int:
        """Number of tensors of the new set."""
        return sum(len(shard.header.tensors) for shard in self.shards) + len(self.tensors)

    @property
    def new_bytes(self) -> int:
        """How much is written anew."""
        extra = sum(tensor_bytes(tensor.shape, tensor.type) for tensor in self.tensors)
        return self.shards[0].size + extra + (1 << 20)


def graft_indexer(first: Path, originals: Originals, folder: Path | None) -> Workflow[Path]:
    """Write a set that has the indexer, and return its first shard.

    The old set is only read. The new folder appears when all of it is right.

    Args:
        first: Any file of the old set, or a folder with no other model in it.
        originals: The original model.
        folder: Folder of the new set; None puts it beside the old one.

    Raises:
        GraftError: The model or the original is not what is needed.
        ModelFileError: The model is damaged.
        DiskFullError: There is too little space.
        DownloadError: The original cannot be fetched.
    """
    if first.is_dir():
        first = find_model(str(first), first)
    names = new_names(shard_paths(first)[0].name)
    folder = folder or first.with_name(names[0].rpartition("-00001-of-")[0])
    if folder.exists():
        raise GraftError("is there already", path=str(folder))
    plan = yield from _plan(first, originals)
    require_space(folder, plan.new_bytes)
    remove_stale_partials(folder.parent)
    partial = new_partial_folder(folder)
    try:
        with disk_full_as_error(folder.parent, need=plan.new_bytes):
            new = [partial / name for name in names]
            yield from _write_indexer(plan, originals, new[-1])
            yield from _write_first(plan, new[0])
            for old, link in zip(plan.paths[1:], new[1:-1], strict=True):
                _link(old, link)
            sync_folder(partial)
        _verify(new)
        publish(partial, folder)
    except BaseException:
        remove_tree(partial)
        raise
    return folder / names[0]


def _plan(first: Path, originals: Originals) -> Workflow[Graft]:
    paths = shard_paths(first)
    require_files(paths)
    shards = yield from read_shards([LocalFile(path) for path in paths])
    require_graftable(inspect_model(shards), path=str(paths[0]))
    yield Started("Reading the original")
    config = require_small(originals, CONFIG)
    numbers = indexer_numbers(config, path=f"{originals.name}/{CONFIG}")
    shape = replace(
        read_shape(shards[0].header),
        index_heads=numbers["head_count"],
        index_size=numbers["key_length"],
    )
    if shape.index_heads != shape.key_value_heads:
        reason = f"has {shape.index_heads} indexer heads, the GGUF {shape.key_value_heads} groups"
        raise GraftError(reason, path=originals.name)
    tensors = indexer_tensors(shape)
    norms = _norms(shape)
    places = find_tensors(originals, [*(tensor.name for tensor in tensors), *norms])
    _require_places(tensors, places, originals)
    for name in norms:
        _require_same_norm(name, shards, places, originals)
    yield Finished("Reading the original", f"{len(tensors)} tensors, {originals.name}")
    return Graft(paths, shards, numbers, tensors, places)


def _require_places(
    tensors: list[IndexerTensor], places: Mapping[str, Place], originals: Originals
) -> None:
    missing = [tensor.name for tensor in tensors if tensor.name not in places]
    if missing:
        reason = f"lacks {len(missing)} of {len(tensors)} indexer tensors, first {missing[0]}"
        raise GraftError(reason, path=originals.name)
    for tensor in tensors:
        theirs = tuple(reversed(places[tensor.name].tensor.shape))
        if theirs != tensor.shape:
            reason = f"{tensor.name} has the shape {theirs}, the GGUF needs {tensor.shape}"
            raise GraftError(reason, path=originals.name)


def _norms(shape: M3Shape) -> list[str]:
    """Name the norms by which it is told whether both have the same weights."""
    layers = (shape.sparse_layers[0], shape.sparse_layers[-1])
    return [f"blk.{layer}.attn_norm.weight" for layer in sorted(set(layers))]


def _require_same_norm(
    name: str, shards: list[Shard], places: Mapping[str, Place], originals: Originals
) -> None:
    """Compare a norm, which no quantisation touches: another model has other ones."""
    place = places.get(name)
    if place is None:
        raise GraftError(f"lacks {name}", path=originals.name)
    theirs = to_f32(place.read(originals), place.tensor.type, plus_one=True)
    for shard in shards:
        info = shard.header.tensor(name)
        if info is not None and _stored(shard, info) != theirs:
            reason = f"{name} differs: {originals.name} holds the weights of another model"
            raise GraftError(reason, path=shard.path)


def _stored(shard: Shard, info: TensorInfo) -> bytes:
    with open(shard.path, "rb") as stream:  # noqa: PTH123 - a shard's path is a text
        stream.seek(shard.header.data_start + info.offset)
        return stream.read(info.size)


def _write_indexer(plan: Graft, originals: Originals, path: Path) -> Workflow[None]:
    keys = split_keys(len(plan.shards), shards=len(plan.shards), tensors=plan.total)
    pairs = [pair(key, value) for key, value in keys.items()]
    total = sum(plan.places[tensor.name].tensor.size for tensor in plan.tensors)
    done = 0
    yield Started(_FETCH)
    with path.open("xb") as file:
        file.write(head(pairs, plan.tensors, DEFAULT_ALIGNMENT))
        for tensor in plan.tensors:
            yield Progress(_FETCH, done, total, Unit.BYTES)
            place = plan.places[tensor.name]
            data = to_f32(place.read(originals), place.tensor.type, plus_one=tensor.plus_one)
            file.write(padded(data, DEFAULT_ALIGNMENT))
            done += place.tensor.size
        _to_disk(file)
    yield Finished(_FETCH, size_text(total))


def _write_first(plan: Graft, path: Path) -> Workflow[None]:
    shard = plan.shards[0]
    end = max((span[1] for span in shard.header.key_spans.values()), default=0)
    size = shard.header.extent - shard.header.data_start
    yield Started(_COPY)
    with plan.paths[0].open("rb") as old, path.open("xb") as new:
        pairs = first_pairs(
            shard.header,
            old.read(end),
            plan.numbers,
            shards=len(plan.shards),
            tensors=plan.total,
        )
        new.write(head(pairs, shard.header.tensors, shard.header.alignment))
        old.seek(shard.header.data_start)
        for done in _copy(old, new, size):
            yield Progress(_COPY, done, size, Unit.BYTES)
        _to_disk(new)
    yield Finished(_COPY, size_text(path.stat().st_size))


def _copy(old: BinaryIO, new: BinaryIO, size: int) -> Iterator[int]:
    done = 0
    while done < size:
        chunk = old.read(min(_CHUNK, size - done))
        if not chunk:
            raise GraftError("became shorter while it was read", path=old.name)
        new.write(chunk)
        done += len(chunk)
        yield done


def _link(old: Path, link: Path) -> None:
    """Give a shard a second name; on another file system, or where that is not allowed, a link."""
    try:
        link.hardlink_to(old.resolve())
    except OSError:
        link.symlink_to(old.resolve())


def _to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _verify(paths: list[Path]) -> Inspection:
    """Read the new set like any other model before it gets its name."""
    found = inspect_model(drain(read_shards([LocalFile(path) for path in paths])))
    if found.facts.kind is not ModelKind.M3_SPARSE:
        raise GraftError("the new set has no indexer", path=str(paths[0]))
    return found
