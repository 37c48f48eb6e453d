"""Stand-ins for compilers and build tools: small scripts in a folder of their own.

The stand-in for ninja obeys FAKE_NINJA: unset, it "compiles"; ``fail LOG`` prints a log and fails;
``hang`` makes one object and waits.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

VERSIONS = {
    "c++": "c++ (Test) 13.3.0",
    "cmake": "cmake version 3.28.3",
    "ninja": "1.12.1",
    "make": "GNU Make 4.3",
    "nvcc": "Cuda compilation tools, release 13.0, V13.0.88",
}
CMAKE = """
for word; do
  [ "$last" = -B ] && build=$word
  last=$word
done
mkdir -p "$build"
printf '%s\\n' "$@" >"$build/arguments"
echo "-- Configuring done"
"""
NINJA = """
while [ $# -gt 0 ]; do
  case $1 in
    -C) build=$2; shift 2 ;;
    -j) shift 2 ;;
    *) targets="$targets $1"; shift ;;
  esac
done
set -- $FAKE_NINJA
[ -e "$build/object" ] && echo "resumed"
touch "$build/object"
echo "${NINJA_STATUS}Building x" | sed 's/%f/1/; s/%t/4/'
case $1 in
  fail) cat "$2"; exit 1 ;;
  hang) echo "$$" >"$build/pid"; sleep 1000; exit 1 ;;
esac
mkdir -p "$build/bin"
for target in $targets; do
  printf '#!/bin/sh\\necho %s\\n' "$target" >"$build/bin/$target"
  chmod +x "$build/bin/$target"
done
echo library >"$build/bin/libllama.so.0.1"
ln -sf libllama.so.0.1 "$build/bin/libllama.so"
echo "${NINJA_STATUS}Linking y" | sed 's/%f/4/; s/%t/4/'
"""
# What a bare Linux host has.
SYSTEM = """sh cat chmod cp dirname env find flock getconf git grep gzip ldconfig ldd ln ls mkdir
    mktemp mv nproc readlink rm sed sha256sum sleep sort stat sync tar tee touch uname"""
BODIES = {"cmake": CMAKE, "ninja": NINJA, "make": NINJA}


def install_tools(folder: Path, *names: str) -> Path:
    """Write stand-ins into a folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or ("c++", "cmake", "ninja"):
        path = folder / name
        version = f"[ \"$1\" = --version ] && {{ echo '{VERSIONS[name]}'; exit 0; }}\n"
        path.write_text("#!/bin/sh\n" + version + BODIES.get(name, "exit 1\n"))
        path.chmod(0o755)
    return folder


def use_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this machine's own build tools: only those of a folder and of the system are found."""
    system = folder.parent / "system"
    system.mkdir()
    for name in SYSTEM.split():
        path = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
        assert path, name
        (system / name).symlink_to(path)
    monkeypatch.setenv("PATH", f"{folder}:{system}")
    monkeypatch.setenv("HOME", str(folder.parent))
    monkeypatch.delenv("CXX", raising=False)
