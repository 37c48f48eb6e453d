"""Numbers that a token leaves in the cache."""

from __future__ import annotations

import pytest

from ggufcluster.core.ggml_types import LAYOUTS, TensorType
from ggufcluster.core.gguf import GgufHeader, Value, ValueType
from ggufcluster.core.kv_cache import KV_ELEMENT_BYTES, index_values, kv_values

KEYS: dict[str, int | tuple[int, ...]] = {
    "a.embedding_length": 64,
    "a.attention.head_count": 4,
    "a.attention.head_count_kv": 2,
}


def header(keys: dict[str, int | tuple[int, ...]]) -> GgufHeader:
    """Make a header with these keys and no tensors."""
    values = {key: Value(ValueType.UINT32, value) for key, value in keys.items()}
    return GgufHeader(3, values, (), 32, 0, 0)


@pytest.mark.parametrize("name", sorted(KV_ELEMENT_BYTES))
def test_element_sizes_are_those_of_the_types(name: str) -> None:
    """Each KV type takes what the ggml type of the same name does."""
    layout = LAYOUTS[TensorType[name.upper()]]
    assert KV_ELEMENT_BYTES[name] == layout.bytes / layout.elements


def test_every_head_has_its_own_keys_without_a_count_of_kv_heads() -> None:
    """A model without grouped heads has as many keys as queries."""
    keys = {key: value for key, value in KEYS.items() if not key.endswith("_kv")}
    assert kv_values(header(keys), "a", 1) == (4 * 32,)


def test_a_list_may_be_shorter_or_longer_than_the_blocks() -> None:
    """A damaged list neither fails nor counts blocks that are not there."""
    keys = KEYS | {"a.attention.head_count_kv": (1, 0, 2)}
    assert kv_values(header(keys), "a", 2) == (32, 0)
    assert kv_values(header(keys), "a", 4) == (32, 0, 64, 0)


def test_latent_attention_keeps_no_values() -> None:
    """With multi-head latent attention only the compressed keys are kept."""
    keys = KEYS | {
        "a.attention.head_count_kv": 1,
        "a.attention.key_length": 576,
        "a.attention.value_length": 512,
        "a.attention.key_length_mla": 192,
    }
    assert kv_values(header(keys), "a", 1) == (576,)


def test_index_keys_count_where_there_is_an_indexer() -> None:
    """Blocks without indexer tensors keep none, nor does a model without the key."""
    keys = KEYS | {"a.attention.indexer.key_length": 128}
    assert index_values(header(keys), "a", 3, indexed={1, 2}) == (0, 128, 128)
    assert index_values(header(KEYS), "a", 3, indexed={1, 2}) == (0, 0, 0)
