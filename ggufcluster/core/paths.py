"""Where ggufcluster keeps things on one host: the XDG folders of that host's user."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ggufcluster.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Run on the host itself: its HOME and XDG settings are not ours. A relative folder is ignored, as
# the XDG specification wants.
PROBE = (
    'folder() { case "$1" in /*) printf "%s\\n" "$1";; *) printf "%s\\n" "$HOME/$2";; esac; }; '
    'folder "$XDG_CACHE_HOME" .cache; folder "$XDG_STATE_HOME" .local/state; '
    'folder "$XDG_CONFIG_HOME" .config; folder "$XDG_DATA_HOME" .local/share'
)


@dataclass(frozen=True, slots=True)
class HostPaths:
    """The four folders of ggufcluster on one host, all absolute.

    Attributes:
        cache: Source archives, builds, engines; may be deleted at any time.
        state: Pid files, logs, the record of the running cluster.
        config: The user's config.toml.
        data: Models.
    """

    cache: PurePosixPath
    state: PurePosixPath
    config: PurePosixPath
    data: PurePosixPath

    @property
    def engines(self) -> PurePosixPath:
        """Folder of published engines, one sub-folder per build id."""
        return self.cache / "engines"

    @property
    def models(self) -> PurePosixPath:
        """Folder of downloaded models."""
        return self.data / "models"


def paths_from_probe(output: str) -> HostPaths:
    """Read the four lines printed by `PROBE`; a login script may have printed before them.

    Raises:
        ValueError: They are not there.
    """
    cache, state, config, data = (PurePosixPath(line) for line in output.splitlines()[-4:])
    return _under(cache, state, config, data)


def paths_from_env(env: Mapping[str, str]) -> HostPaths:
    """Resolve the folders from environment variables, with the XDG defaults under HOME.

    Raises:
        ConfigError: HOME is not set, or is no absolute path.
    """
    if not env.get("HOME"):
        raise ConfigError("HOME is not set", source="environment")
    if not env["HOME"].startswith("/"):
        raise ConfigError(f"HOME is no absolute path (got {env['HOME']!r})", source="environment")
    home = PurePosixPath(env["HOME"])

    def folder(name: str, default: str) -> PurePosixPath:
        given = PurePosixPath(env.get(name, ""))
        return given if given.is_absolute() else home / default

    return _under(
        folder("XDG_CACHE_HOME", ".cache"),
        folder("XDG_STATE_HOME", ".local/state"),
        folder("XDG_CONFIG_HOME", ".config"),
        folder("XDG_DATA_HOME", ".local/share"),
    )


def _under(*roots: PurePosixPath) -> HostPaths:
    return HostPaths(*(root / "ggufcluster" for root in roots))
