"""Images for a model that sees."""

from __future__ import annotations

import base64

import pytest

from ggufcluster.core.picture import MOST_BYTES, data_url


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n...", "png"),
        (b"\xff\xd8\xff\xe0", "jpeg"),
        (b"GIF89a", "gif"),
        (b"BM....", "bmp"),
        (b"RIFF1234WEBPVP8 ", "webp"),
    ],
)
def test_the_first_bytes_tell_the_kind(content: bytes, kind: str) -> None:
    """The address names the kind and holds the bytes."""
    head, _, data = data_url(content).partition(",")
    assert head == f"data:image/{kind};base64"
    assert base64.b64decode(data) == content


@pytest.mark.parametrize("content", [b"", b"%PDF-1.7", b"RIFF1234WAVE"])
def test_other_files_are_refused(content: bytes) -> None:
    """What is no image is not sent."""
    with pytest.raises(ValueError, match="is no PNG"):
        data_url(content)


def test_a_huge_image_is_refused() -> None:
    """A file beyond the limit is named as such."""
    with pytest.raises(ValueError, match="larger than 20 MiB"):
        data_url(b"GIF8" + bytes(MOST_BYTES))
