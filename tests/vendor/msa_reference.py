"""Asks the C++ reference of sparse attention, and says in NumPy what attention is."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Integers = NDArray[np.int32]

ROOT: Final = Path(__file__).parents[2]
OVERLAY: Final = ROOT / "vendor" / "llama.cpp" / "overlay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of selection and attention; arrays as the driver reads them.

    Attributes:
        pos_map: Shape (stream, position / step), the cell of the first of `step` positions, or -1.
        position: Shape (stream, token).
        index_query: Shape (stream, token, group, dim).
        index_key: Shape (stream, cell, 1, dim).
        query: Shape (stream, token, head, dim).
        key: Shape (stream, cell, group, dim).
        value: Like `key`.
    """

    pos_map: Integers
    position: Integers
    index_query: Floats
    index_key: Floats
    query: Floats
    key: Floats
    value: Floats
    step: int = 1
    block: int = 128
    top: int = 16
    local: int = 1
    init: int = 0

    def sizes(self) -> list[int]:
        """List the header of the file in the driver's order."""
        streams, cells, groups, dim = self.key.shape
        tokens, heads = self.query.shape[1:3]
        shape = [dim, heads, groups, cells, streams, self.pos_map.shape[1], self.step, tokens]
        return [*shape, self.block, self.top, self.local, self.init]

    def write(self, path: Path) -> None:
        """Write the file that the driver reads."""
        integers = [array.astype("<i4").tobytes() for array in (self.pos_map, self.position)]
        rows = (self.index_query, self.index_key, self.query, self.key, self.value)
        floats = [array.astype("<f4").tobytes() for array in rows]
        header = np.array(self.sizes(), dtype="<i8").tobytes()
        path.write_bytes(b"".join([header, *integers, *floats]))


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of it: `ids` (stream, token, group, top), `outputs` like the queries."""

    ids: Integers
    outputs: Floats


@dataclass(frozen=True, slots=True)
class Reference:
    """The compiled driver and a folder for what it reads and writes."""

    program: Path
    folder: Path

    def command(self, asked: Path, answered: Path) -> list[Path | str]:
        """Give the words that run one request."""
        return [self.program, asked, answered]

    def ask(self, request: Request) -> Reply:
        """Run the driver on one request."""
        asked, answered = self.folder / "request", self.folder / "reply"
        request.write(asked)
        subprocess.run(self.command(asked, answered), check=True)
        reply = answered.read_bytes()
        shape = (*request.index_query.shape[:3], request.top)
        cut = int(np.prod(shape)) * 4
        ids = np.frombuffer(reply[:cut], "<i4").reshape(shape)
        return Reply(ids, np.frombuffer(reply[cut:], "<f4").reshape(request.query.shape))


def compile_reference(folder: Path) -> Reference:
    """Compile the driver against the overlay's reference, warnings being errors."""
    program = folder / "msa_reference_driver"
    source = Path(__file__).with_name("msa_reference_driver.cpp")
    include = OVERLAY / "ggml" / "src"
    flags = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["g++", *flags, "-I", include, "-o", program, source], check=True)
    return Reference(program, folder)


def attend(query: Floats, key: Floats, value: Floats) -> Floats:
    """Attend to every row, in double precision and all at once.

    Args:
        query: Shape (head, dim), of one token.
        key: Shape (row, group, dim), what is visible.
        value: Like `key`.

    Returns:
        Shape (head, dim).
    """
    heads, dim = query.shape
    groups = key.shape[1]
    rows = query.reshape(groups, heads // groups, dim).astype(np.float64)
    logits = np.einsum("ghd,rgd->ghr", rows, key.astype(np.float64)) / np.sqrt(dim)
    weights = np.exp(logits - logits.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    mixed = np.einsum("ghr,rgd->ghd", weights, value.astype(np.float64))
    output: Floats = mixed.reshape(heads, dim).astype(np.float32)
    return output
