"""Text of strangers, made harmless for a terminal."""

from __future__ import annotations

# Overrides of the writing direction can make a call look like another one.
_DIRECTIONS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_REPLACED = dict.fromkeys(
    (
        *(code for code in range(0x20) if chr(code) not in "\n\t"),
        *range(0x7F, 0xA0),
        *_DIRECTIONS,
        *range(0xD800, 0xE000),  # halves of letters have no form in UTF-8
    ),
    "\N{REPLACEMENT CHARACTER}",
)


def harmless(text: str) -> str:
    """Replace what would move the cursor, change colours or reorder letters; it stays visible."""
    return text.translate(_REPLACED)


def one_line(text: str, most: int) -> str:
    """Show text on one line of at most `most` letters, cut in the middle if need be."""
    flat = harmless(" ".join(text.split()))
    if len(flat) <= most:
        return flat
    kept = most - 3
    return f"{flat[: kept - kept // 3]}...{flat[len(flat) - kept // 3 :]}"
