"""Vocabulary of the toy models: every byte, MiniMax-M3's markers, and what a model adds.

A byte-level BPE vocabulary without merges turns any text into single bytes, so every prompt can
be tokenized, while longer entries are reached by the model alone. llama.cpp insists that all
entries differ and matches special entries longest first (llama-vocab.cpp).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from ggufcluster.core.gguf import Value, ValueType
from ggufcluster.core.gguf_write import array, string, uint32

NAMESPACE = "]<]minimax[>["
BEGIN_OF_TEXT = "]~!b["
BEGIN_OF_TURN = "]~b]"
END_OF_TURN = "[e~["
THINK_START = "<mm:think>"
THINK_END = "</mm:think>"
CALL_START = "<tool_call>"
CALL_END = "</tool_call>"

CONTROL_MARKERS = (BEGIN_OF_TEXT, BEGIN_OF_TURN, END_OF_TURN)
VISIBLE_MARKERS = (NAMESPACE, THINK_START, THINK_END, CALL_START, CALL_END)


class TokenKind(IntEnum):
    """Number of a token's kind in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4


def _byte_letters() -> tuple[str, ...]:
    # GPT-2's convention: printable Latin-1 bytes stand for themselves, all others, in order,
    # for the code points from 256 on.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {byte: chr(256 + index) for index, byte in enumerate(others)}
    return tuple(shifted.get(byte, chr(byte)) for byte in range(256))


BYTE_LETTERS = _byte_letters()


def stored_text(text: str) -> str:
    """Spell a piece of text the way a byte-level vocabulary stores it."""
    return "".join(BYTE_LETTERS[byte] for byte in text.encode())


@dataclass(slots=True)
class Vocabulary:
    """Entries in order of their number; `add` gives the number of a new one."""

    entries: list[str] = field(default_factory=list)
    kinds: list[TokenKind] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def base(cls) -> Vocabulary:
        """Make the vocabulary that all toy models share: the bytes and the markers."""
        vocabulary = cls()
        for letter in BYTE_LETTERS:
            vocabulary.add(letter, TokenKind.NORMAL)
        for marker in CONTROL_MARKERS:
            vocabulary.add(marker, TokenKind.CONTROL)
        for marker in VISIBLE_MARKERS:
            vocabulary.add(marker, TokenKind.USER_DEFINED)
        return vocabulary

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, entry: str, kind: TokenKind) -> int:
        """Append an entry (as stored) and return its number; raise ValueError if it exists."""
        if entry in self.numbers:
            raise ValueError(f"vocabulary entry {entry!r} exists already")
        self.numbers[entry] = number = len(self.entries)
        self.entries.append(entry)
        self.kinds.append(kind)
        return number

    def metadata(self, template: str) -> dict[str, Value]:
        """Describe the vocabulary, and the chat template, in GGUF's keys."""
        return {
            "tokenizer.ggml.model": string("gpt2"),
            "tokenizer.ggml.pre": string("minimax-m2"),
            "tokenizer.ggml.tokens": array(ValueType.STRING, self.entries),
            "tokenizer.ggml.token_type": array(ValueType.INT32, self.kinds),
            "tokenizer.ggml.merges": array(ValueType.STRING, ()),
            "tokenizer.ggml.bos_token_id": uint32(self.numbers[BEGIN_OF_TEXT]),
            "tokenizer.ggml.eos_token_id": uint32(self.numbers[END_OF_TURN]),
            "tokenizer.ggml.add_bos_token": Value(ValueType.BOOL, False),
            "tokenizer.chat_template": string(template),
        }
