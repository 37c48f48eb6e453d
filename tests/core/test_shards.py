"""Sets of shards, right and wrong ones."""

from __future__ import annotations

import io

import pytest

from ggufcluster.core.gguf import Value, ValueType, read_header
from ggufcluster.core.gguf_write import GgufModel, string, uint32
from ggufcluster.core.shards import Shard, check_set
from ggufcluster.errors import MixedShardsError
from tests.workflows.tiny_model import tiny

NAMES = tuple(f"m-{n:05d}-of-00003.gguf" for n in (1, 2, 3))


def split(model: GgufModel, count: int = 3) -> list[GgufModel]:
    """Cut a model into shards, as llama-gguf-split does."""
    parts = []
    for number in range(count):
        metadata = dict(model.metadata) if number == 0 else {}
        metadata |= {
            "split.no": Value(ValueType.UINT16, number),
            "split.count": Value(ValueType.UINT16, count),
            "split.tensors.count": Value(ValueType.INT32, len(model.tensors)),
        }
        parts.append(GgufModel(metadata, model.tensors[number::count]))
    return parts


def shard(name: str, model: GgufModel) -> Shard:
    """Make a shard of what a file holds."""
    data = model.to_bytes()
    return Shard(f"/models/{name}", len(data), read_header(io.BytesIO(data)))


def with_keys(model: GgufModel, **keys: Value) -> GgufModel:
    """Change some keys; a double underscore stands for a dot."""
    changed = {key.replace("__", "."): value for key, value in keys.items()}
    return GgufModel(dict(model.metadata) | changed, model.tensors)


def refusal(parts: list[GgufModel], names: tuple[str, ...] = NAMES) -> MixedShardsError:
    """Return the error that a set is refused with."""
    with pytest.raises(MixedShardsError) as caught:
        check_set([shard(name, part) for name, part in zip(names, parts, strict=True)])
    return caught.value


def test_a_whole_set_and_a_single_file_are_right() -> None:
    """What llama-gguf-split makes passes, and so does a model in one file."""
    check_set([shard(name, part) for name, part in zip(NAMES, split(tiny()), strict=True)])
    check_set([shard("m.gguf", tiny())])
    check_set([shard("m-00001-of-00001.gguf", split(tiny(), 1)[0])])


def test_a_renamed_shard_is_told() -> None:
    """A part of a set under a name of its own cannot be completed by llama.cpp."""
    error = refusal(split(tiny())[1:2], ("model.gguf",))
    assert "is shard 2 of 3, which its name does not say" in str(error)


def test_shards_in_each_others_place_are_told() -> None:
    """The number inside a file must be that of its name."""
    first, second, third = split(tiny())
    error = refusal([first, third, second])
    assert (error.path, error.reason) == (
        f"/models/{NAMES[1]}",
        "is shard 3 of 3, by its name shard 2 of 3",
    )


def test_a_shard_of_a_longer_set_is_told() -> None:
    """The count inside a file must be that of its name."""
    error = refusal([*split(tiny())[:2], split(tiny(), 4)[2]])
    assert "is shard 3 of 4, by its name shard 3 of 3" in str(error)


def test_a_file_that_is_no_shard_is_told() -> None:
    """A whole model under the name of a shard has no number."""
    first, second, _ = split(tiny())
    assert "is not part of a set" in str(refusal([first, second, tiny()]))


def test_a_shard_of_another_cut_of_the_model_is_told() -> None:
    """Another conversion has its tensors elsewhere: one comes twice."""
    first, second, third = split(tiny())
    other = GgufModel(third.metadata, [*third.tensors, second.tensors[0]])
    error = refusal([first, second, other])
    assert f"holds tensor '{second.tensors[0].name}', which {NAMES[1]} holds as well" in str(error)


def test_a_shard_with_other_keys_is_told() -> None:
    """Keys that two shards share must agree."""
    first, second, third = split(tiny())
    other = with_keys(third, general__name=string("Another"))
    error = refusal([first, second, other])
    assert f"another conversion than {NAMES[0]}: 'general.name' differs" in str(error)
    shorter = with_keys(second, split__tensors__count=Value(ValueType.INT32, 5))
    assert "'split.tensors.count' differs" in str(refusal([first, shorter, third]))


def test_numbers_of_another_type_are_told() -> None:
    """llama.cpp aborts when a shard's number is stored otherwise than it reads it."""
    first, second, third = split(tiny())
    error = refusal([first, with_keys(second, split__no=uint32(1)), third])
    assert "stores split.no as UINT32, with which llama.cpp aborts" in str(error)


@pytest.mark.parametrize(("before", "is_right"), [(2, True), (1, False), (3, False), (0, False)])
def test_shards_of_a_grafted_set_tell_the_old_count(before: int, *, is_right: bool) -> None:
    """Linked shards may tell how many there were before, if the first one says so."""
    first, second, third = split(tiny())
    old = Value(ValueType.UINT16, 2)
    first = with_keys(first, ggufcluster__graft__shards=uint32(before))
    second = with_keys(second, split__count=old, split__tensors__count=Value(ValueType.INT32, 4))
    if is_right:
        check_set([shard(n, part) for n, part in zip(NAMES, (first, second, third), strict=True)])
    else:
        assert "is shard 2 of 2" in str(refusal([first, second, third]))


def test_too_few_tensors_are_told() -> None:
    """The set must hold as many tensors as it says."""
    first, second, third = split(tiny())
    fewer = GgufModel(third.metadata, third.tensors[:-1])
    assert "holds 5 tensors and should hold 6" in str(refusal([first, second, fewer]))


def test_what_stands_behind_the_last_tensor_is_counted() -> None:
    """Padding is no surplus, a second file behind the first one is."""
    data = tiny().to_bytes()
    header = read_header(io.BytesIO(data))
    assert Shard("m", header.extent, header).surplus == 0
    assert Shard("m", len(data), header).surplus == 0
    assert Shard("m", len(data) + 500, header).surplus == 500
