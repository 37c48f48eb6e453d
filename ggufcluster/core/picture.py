"""Images as a model that sees takes them."""

from __future__ import annotations

import base64

MOST_BYTES = 20 << 20
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
)


def data_url(content: bytes) -> str:
    """Return an image as a `data:` address, its kind told by its first bytes.

    Raises:
        ValueError: It is no image of a known kind, or too large.
    """
    if len(content) > MOST_BYTES:
        raise ValueError(f"is larger than {MOST_BYTES >> 20} MiB")
    kind = next((kind for magic, kind in _MAGIC if content.startswith(magic)), None)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        kind = "webp"
    if kind is None:
        raise ValueError("is no PNG, JPEG, GIF, BMP or WebP image")
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
