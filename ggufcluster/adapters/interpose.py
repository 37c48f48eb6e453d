"""Redirect one call that a loaded shared library makes, without changing the library.

A library calls functions of other libraries through a table of addresses (its global offset
table). The dynamic section says where that table is and which slot belongs to which name; writing
another address into the slot redirects the call. Layouts: the ELF-64 specification.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYMBOL_BYTES = 24
_DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL, _DT_PLTRELSZ = 5, 6, 7, 8, 23, 2
_READ_WRITE = 1 | 2


class _LinkMap(ctypes.Structure):
    """The beginning of glibc's ``struct link_map``, which a handle of dlopen points to."""

    _fields_ = (
        ("base", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("dynamic", ctypes.c_size_t),
    )


class _Dynamic(ctypes.Structure):
    _fields_ = (("tag", ctypes.c_int64), ("value", ctypes.c_uint64))


class _Relocation(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("info", ctypes.c_uint64), ("addend", ctypes.c_int64))


def redirect(library: ctypes.CDLL, name: str, address: int) -> bool:
    """Let calls that `library` makes to the function `name` go to `address` instead.

    Args:
        library: An open library.
        name: Symbol of the function that it imports, mangled if it is C++.
        address: A function of the same signature, which must live as long as the process.

    Returns:
        Whether the library imports such a function at all.
    """
    link_map = _LinkMap.from_address(library._handle)  # noqa: SLF001 - there is no other way to it
    found = False
    for slot in _slots(link_map, name.encode()):
        _make_writable(slot)
        ctypes.c_size_t.from_address(slot).value = address
        found = True
    return found


def _slots(link_map: _LinkMap, name: bytes) -> Iterator[int]:
    table = _dynamic(link_map.dynamic)
    strings, symbols = table[_DT_STRTAB], table[_DT_SYMTAB]
    for start, size in ((_DT_JMPREL, _DT_PLTRELSZ), (_DT_RELA, _DT_RELASZ)):
        count = table.get(size, 0) // ctypes.sizeof(_Relocation)
        for entry in (_Relocation * count).from_address(table[start]) if count else ():
            symbol = symbols + (entry.info >> 32) * _SYMBOL_BYTES
            text = strings + ctypes.c_uint32.from_address(symbol).value
            if entry.info >> 32 and ctypes.string_at(text) == name:
                yield link_map.base + entry.offset


def _dynamic(address: int) -> dict[int, int]:
    found: dict[int, int] = {}
    while (entry := _Dynamic.from_address(address)).tag:
        found[entry.tag] = entry.value
        address += ctypes.sizeof(_Dynamic)
    return found


def _make_writable(slot: int) -> None:
    """Lift the write protection that a linker may have put on the table after loading."""
    libc = ctypes.CDLL(None, use_errno=True)
    page = slot - slot % mmap.PAGESIZE
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), _READ_WRITE):
        raise OSError(ctypes.get_errno(), "mprotect")
