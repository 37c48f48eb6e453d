"""Choose from a listing the files of one model."""

from __future__ import annotations

import re
from collections import defaultdict
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ggufcluster.core.download.listing import require_safe
from ggufcluster.core.model import shard_names
from ggufcluster.errors import FileChoiceError, ShardSetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ggufcluster.core.download.listing import Listing, PublishedFile

_SHARD_TAIL = re.compile(r"-\d{5}-of-\d{5}$")
# How quantisations are called: Q4_K_M, UD-IQ4_XS, MXFP4_MOE, BF16, ...
_QUANT = re.compile(
    r"(?:^|[-._/ ])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP\d\w*|NVFP\d\w*|BF16|F16|F32|FP16|FP32|FP8))$",
    re.IGNORECASE,
)
# Names of what lies beside a model: a projector of vision, and the matrix of a quantisation. A
# model may well be called after the matrix that it was made with, but not at the end.
_BESIDE = re.compile(r"(?:^|[-._])mmproj(?:[-._]|$)|^imatrix|[-._]imatrix$")
# Pieces to be joined by hand, as they were uploaded before GGUF had shards.
_PIECE = re.compile(r"\.gguf[-._](?:part|split)\S*$", re.IGNORECASE)


def model_files(listing: Listing) -> tuple[PublishedFile, ...]:
    """Return the GGUF files that hold a model's weights: no projector of vision, no matrix."""
    return tuple(file for file in listing.files if is_model(file.path))


def quant_of(path: str) -> str:
    """Return the name of the quantisation of a file, as its own name or its folder tells it."""
    folder, _, name = path.rpartition("/")
    stem = _SHARD_TAIL.sub("", _stem(name))
    for text in (stem, folder):
        if found := _QUANT.search(text):
            return found[1]
    return stem


def quants(listing: Listing) -> dict[str, tuple[PublishedFile, ...]]:
    """Return the model files by quantisation, in the order of the listing."""
    groups: defaultdict[str, list[PublishedFile]] = defaultdict(list)
    for file in model_files(listing):
        groups[quant_of(file.path)].append(file)
    return {name: tuple(files) for name, files in groups.items()}


def choose(
    listing: Listing, *, quant: str | None = None, include: str | None = None
) -> tuple[PublishedFile, ...]:
    """Return the files to download, each shard set complete.

    Args:
        listing: What there is.
        quant: Name of a quantisation, in any case.
        include: Shell pattern over whole paths; a pattern without a slash also fits bare names.

    Raises:
        FileChoiceError: Nothing fits, or nothing was said and there is more than one model.
        ShardSetError: A set is not complete.
        UnsafeNameError: A chosen name would leave the folder.
    """
    chosen = _by_pattern(listing, include) if include else _by_quant(listing, quant)
    for file in chosen:
        require_safe(file.path, repository=listing.repository)
    _require_complete(chosen, listing)
    return tuple(sorted(chosen, key=lambda file: file.path))


def first_shards(files: Iterable[PublishedFile]) -> tuple[str, ...]:
    """Return the paths to give to ``up``: the first file of each model among those chosen."""
    paths = sorted(file.path for file in files if is_model(file.path))
    return tuple(dict.fromkeys(map(first_of_set, paths)))


def is_model(path: str) -> bool:
    """Tell whether a file holds a model's weights."""
    name = path.rpartition("/")[2].lower()
    return name.endswith(".gguf") and not _BESIDE.search(_stem(name))


def _stem(name: str) -> str:
    return name[: -len(".gguf")] if name.lower().endswith(".gguf") else name


def _by_pattern(listing: Listing, include: str) -> tuple[PublishedFile, ...]:
    def fits(path: str) -> bool:
        name = path.rpartition("/")[2]
        return fnmatchcase(path, include) or ("/" not in include and fnmatchcase(name, include))

    chosen = tuple(file for file in listing.files if fits(file.path))
    if not chosen:
        raise FileChoiceError(
            f"no file fits {include!r}", where=listing.repository, choices=tuple(quants(listing))
        )
    return chosen


def _by_quant(listing: Listing, quant: str | None) -> tuple[PublishedFile, ...]:
    groups = quants(listing)
    if not groups:
        raise FileChoiceError(_why_none(listing), where=listing.repository, choices=())
    if quant is None and len(groups) == 1:
        return next(iter(groups.values()))
    if quant is None:
        reason = f"holds {len(groups)} models and none was chosen"
        raise FileChoiceError(reason, where=listing.repository, choices=tuple(groups))
    return _named(groups, quant, listing.repository)


def _why_none(listing: Listing) -> str:
    pieces = [file.path for file in listing.files if _PIECE.search(file.path)]
    if not pieces:
        return "holds no GGUF model"
    first, *more = pieces
    others = ", ..." if more else ""
    return f"holds no whole GGUF, only pieces for you to --include and join: {first}{others}"


def _named(
    groups: Mapping[str, tuple[PublishedFile, ...]], quant: str, repository: str
) -> tuple[PublishedFile, ...]:
    same = [name for name in groups if name.lower() == quant.lower()]
    if not same:
        raise FileChoiceError(f"has no {quant}", where=repository, choices=tuple(groups))
    files = tuple(file for name in same for file in groups[name])
    sets = {first_of_set(file.path) for file in files}
    if len(sets) > 1:
        reason = f"has {len(sets)} models called {quant}; choose one with --include"
        raise FileChoiceError(reason, where=repository, choices=tuple(sorted(sets)))
    return files


def first_of_set(path: str) -> str:
    """Return the path of the first shard, which names the whole set."""
    folder, slash, name = path.rpartition("/")
    return folder + slash + shard_names(name)[0]


def _require_complete(chosen: Iterable[PublishedFile], listing: Listing) -> None:
    published = {file.path for file in listing.files}
    wanted = {file.path for file in chosen}
    for path in sorted(path for path in wanted if path.endswith(".gguf")):
        folder, slash, name = path.rpartition("/")
        members = [folder + slash + member for member in shard_names(name)]
        if path not in members:
            raise ShardSetError(f"{path} is none of its own set", where=listing.repository)
        missing = [member for member in members if member not in wanted]
        if missing:
            reason = "the repository lacks" if missing[0] not in published else "not chosen:"
            listed = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            raise ShardSetError(
                f"the set of {path} is not complete, {reason} {listed}", where=listing.repository
            )
