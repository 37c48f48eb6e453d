"""Check that the files of a model are one complete set, each whole, and of one conversion.

llama.cpp finds the further shards by name and compares their numbers only (the pin's
src/llama-model-loader.cpp); a shard of another conversion gives wrong answers or a crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ggufcluster.core.gguf import ValueType
from ggufcluster.core.gguf_cursor import shown
from ggufcluster.core.model import shard_names
from ggufcluster.errors import MixedShardsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ggufcluster.core.gguf import GgufHeader

SPLIT_NUMBER = "split.no"
SPLIT_COUNT = "split.count"
SPLIT_TENSORS = "split.tensors.count"
# Ours, in the first shard of a set that got an indexer: how many shards the set had before. Those
# are linked as they are and go on telling the old count, which llama.cpp does not read.
GRAFTED_SHARDS = "ggufcluster.graft.shards"

_SPLIT_TYPES = {
    SPLIT_NUMBER: ValueType.UINT16,
    SPLIT_COUNT: ValueType.UINT16,
    SPLIT_TENSORS: ValueType.INT32,
}


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a model.

    Attributes:
        path: Where it is, for messages; what stands after the last slash is its name.
        size: Its length in bytes.
        header: What it says of itself.
    """

    path: str
    size: int
    header: GgufHeader

    @property
    def name(self) -> str:
        """Name without folders."""
        return self.path.rpartition("/")[2]

    @property
    def surplus(self) -> int:
        """Bytes behind the last tensor that are no padding."""
        padding = -self.header.extent % self.header.alignment
        return max(0, self.size - self.header.extent - padding)


def check_set(shards: Sequence[Shard]) -> None:
    """Make sure that the shards, first shard first, belong together and are all there are.

    Raises:
        MixedShardsError: They do not, or are not.
    """
    first = shards[0]
    names = shard_names(first.name)
    count = first.header.optional(SPLIT_COUNT)
    if count > 1 and len(names) == 1:
        raise MixedShardsError(
            f"is shard {first.header.optional(SPLIT_NUMBER) + 1} of {count}, which its name does"
            " not say: llama.cpp finds the others by name",
            path=first.path,
        )
    if len(shards) > 1 or count > 1:
        for place, shard in enumerate(shards):
            _check_place(shard, place, shards)
    _check_tensors(shards)


def _check_place(shard: Shard, place: int, shards: Sequence[Shard]) -> None:
    said = shard.header.optional(SPLIT_NUMBER), shard.header.optional(SPLIT_COUNT)
    before = shards[0].header.optional(GRAFTED_SHARDS)
    grafted = 0 < place < before == len(shards) - 1
    if said != (place, before if grafted else len(shards)):
        number, count = said
        what = f"is shard {number + 1} of {count}" if count else "is not part of a set"
        wanted = f"shard {place + 1} of {len(shards)}"
        raise MixedShardsError(f"{what}, by its name {wanted}", path=shard.path)
    for key, kind in _SPLIT_TYPES.items():
        value = shard.header.metadata.get(key)
        if value is not None and value.type is not kind:
            reason = f"stores {key} as {value.type.name}, with which llama.cpp aborts"
            raise MixedShardsError(reason, path=shard.path)
    for key in _differing_keys(shard, shards[0], grafted=grafted):
        raise MixedShardsError(
            f"comes from another conversion than {shards[0].name}: {key} differs", path=shard.path
        )


def _differing_keys(shard: Shard, first: Shard, *, grafted: bool) -> Iterator[str]:
    """Yield the keys that both have with different values; most shards repeat only a few."""
    own = {SPLIT_NUMBER, *((SPLIT_COUNT, SPLIT_TENSORS) if grafted else ())}
    for key, value in shard.header.metadata.items():
        theirs = first.header.metadata.get(key)
        if key not in own and theirs is not None and theirs.value != value.value:
            yield shown(key)


def _check_tensors(shards: Sequence[Shard]) -> None:
    seen: dict[str, Shard] = {}
    for shard in shards:
        for tensor in shard.header.tensors:
            twin = seen.setdefault(tensor.name, shard)
            if twin is not shard:
                raise MixedShardsError(
                    f"holds tensor {shown(tensor.name)}, which {twin.name} holds as well",
                    path=shard.path,
                )
    told = shards[0].header.optional(SPLIT_TENSORS)
    if SPLIT_TENSORS in shards[0].header.metadata and told != len(seen):
        raise MixedShardsError(
            f"the set holds {len(seen):,} tensors and should hold {told:,}", path=shards[0].path
        )
