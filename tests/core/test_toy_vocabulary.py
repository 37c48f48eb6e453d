"""The vocabulary that toys share."""

from __future__ import annotations

import pytest

from ggufcluster.core.toy_vocabulary import BYTE_LETTERS, TokenKind, Vocabulary, stored_text


def test_every_byte_has_its_own_letter() -> None:
    """Any byte of any prompt has an entry, and no two share one."""
    assert len(set(BYTE_LETTERS)) == 256
    assert Vocabulary.base().entries[:256] == list(BYTE_LETTERS)


def test_text_is_spelled_as_in_gpt2() -> None:
    """Space, newline and bytes above ASCII are spelled in GPT-2's letters."""
    assert stored_text("a b\n") == "aĠbĊ"
    assert stored_text("é") == "Ã©"


def test_entries_must_differ() -> None:
    """An entry that exists already is refused, because llama.cpp would not load the file."""
    vocabulary = Vocabulary.base()
    with pytest.raises(ValueError, match="exists already"):
        vocabulary.add("a", TokenKind.NORMAL)


def test_metadata_names_the_end_of_turn() -> None:
    """The end-of-turn marker is the entry on which generation stops."""
    metadata = Vocabulary.base().metadata("template text")
    tokens, end = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.eos_token_id"]
    assert isinstance(tokens.value, tuple)
    assert isinstance(end.value, int)
    assert tokens.value[end.value] == "[e~["
    assert metadata["tokenizer.chat_template"].value == "template text"
