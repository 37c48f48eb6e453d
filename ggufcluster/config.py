"""The only reader of settings.

Flags win over environment variables (``GGUFCLUSTER_*``), those over ``./ggufcluster.toml``, that
over ``config.toml`` in the user's XDG configuration folder, and that over the defaults below.
`example.toml` beside this module shows every setting.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggufcluster.core.paths import paths_from_env
from ggufcluster.core.wish import MAX_CONTEXT
from ggufcluster.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

KV_TYPES = ("f16", "q8_0", "q4_0")
BACKENDS = ("auto", "cpu", "cuda")
TEMPLATE_STYLES = ("auto", "native", "hybrid", "own")
MSA_PATHS = ("auto", "native", "generic", "dense")
INDEX_TYPES = ("f16", "q8_0")
LOCAL_FILE = "ggufcluster.toml"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its place in TOML, how to read it, its default and what it means."""

    key: str
    read: Callable[[Any], Any]
    default: Any
    meaning: str

    @property
    def variable(self) -> str:
        """Name of the environment variable: ``head.port`` is GGUFCLUSTER_HEAD_PORT."""
        return _PREFIX + self.key.replace(".", "_").upper()

    @property
    def option(self) -> str:
        """Name on the command line: ``head.port`` is --port."""
        if self.key == "workers.hosts":
            return "--worker"
        return "--" + self.argument.replace("_", "-")

    @property
    def argument(self) -> str:
        """Name as a keyword argument in Python: ``head.port`` is port."""
        return "workers" if self.key == "workers.hosts" else self.key.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Value:
    """A merged setting, where it came from, and what to correct there if it is wrong."""

    value: Any
    origin: str
    place: str


class Settings:
    """All settings, merged; look values up by key: ``settings["head.port"]``."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key].value

    def origin(self, key: str) -> str:
        """Return where the value of `key` came from, in words."""
        return self._values[key].origin

    def place(self, key: str) -> str:
        """Return what to correct to change `key`: an option, a variable, or a line of a file.

        What is no key of a setting stays what it is.
        """
        return self._values[key].place if key in self._values else key

    def items(self) -> list[tuple[str, Value]]:
        """Return key and merged value of every setting, in the order of the table."""
        return list(self._values.items())


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    if not value.strip():
        raise ValueError("must not be empty")
    return value.strip()


def _texts(value: Any) -> tuple[str, ...]:
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(words, list | tuple):
        raise ValueError("must be a list")
    if not all(isinstance(word, str) for word in words):
        raise ValueError("must be a list of texts")
    return tuple(words)


def _flag(value: Any) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError("must be true or false")


def _number(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError("must be a whole number")
        try:
            number = int(value)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"must be between {low} and {high}")
        return number

    return read


def _choice(*words: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError("must be one of " + ", ".join(words))
        return str(value)

    return read


_TOKENS = _number(256, 16 * 1024 * 1024)


def _context(value: Any) -> int | str:
    if value == MAX_CONTEXT:
        return MAX_CONTEXT
    try:
        return _TOKENS(value)
    except ValueError as error:
        raise ValueError(f"{error}, or {MAX_CONTEXT}") from None


SETTINGS = (
    Setting("model", _text, None, "GGUF file (or its first shard)"),
    Setting("ctx", _context, None, "context per slot in tokens, or max; unset: a usual one"),
    Setting("parallel", _number(1, 256), 1, "slots that answer at the same time"),
    Setting("kv_type", _choice(*KV_TYPES), None, "KV cache type; unset: the model family's"),
    Setting("ubatch", _number(16, 65536), None, "tokens per ubatch; unset: the family's"),
    Setting("msa", _choice(*MSA_PATHS), "auto", "path of MiniMax Sparse Attention"),
    Setting("msa_index_type", _choice(*INDEX_TYPES), "f16", "type of its index keys"),
    Setting("template", _text, None, "chat template file; unset: the model's own"),
    Setting(
        "template_style",
        _choice(*TEMPLATE_STYLES),
        "auto",
        "what is made of the model's own template; own: nothing",
    ),
    Setting("workers.hosts", _texts, (), "[user@]host[:ssh-port], or local, or local:N"),
    Setting("workers.accept_new_host_keys", _flag, False, "add unknown SSH host keys"),
    Setting("workers.allow_public", _flag, False, "allow a worker on a public address"),
    Setting("workers.ready_seconds", _number(1, 3600), 60, "time for a worker to become ready"),
    Setting("head.host", _text, "127.0.0.1", "address on which the API listens"),
    Setting("head.port", _number(1, 65535), 8080, "port on which the API listens"),
    Setting("head.api_key_file", _text, None, "file with one API key a line"),
    Setting(
        "head.stall_seconds", _number(1, 86400), 300, "give up after this long with no progress"
    ),
    Setting("head.drop_caches", _flag, False, "free the page cache on every node before loading"),
    Setting("head.tool_check", _flag, True, "prove one tool call after the start"),
    Setting("engine.backend", _choice(*BACKENDS), "auto", "what to build for"),
    Setting("engine.arch", _texts, (), "CUDA architectures, such as 121; unset: those found"),
    Setting("engine.jobs", _number(1, 1024), None, "parallel compilers; unset: cores and memory"),
    Setting("engine.source", _text, None, "llama.cpp tree to use instead of the pinned one"),
)

_BY_KEY = {setting.key: setting for setting in SETTINGS}
_TABLES = {key.partition(".")[0] for key in _BY_KEY if "." in key}
_PREFIX = "GGUFCLUSTER_"
# Nearer than this a name is a slip of the pen; the engine has variables of its own.
_SLIP = 0.8


def load_settings(
    env: Mapping[str, str],
    *,
    folder: Path,
    flags: Mapping[str, Any] | None = None,
    name_of: Callable[[Setting], str] | None = None,
) -> Settings:
    """Merge every source of settings.

    Args:
        env: Environment variables.
        folder: Current folder, where ``ggufcluster.toml`` may lie.
        flags: Settings given by the caller, by key; None values count as not given.
        name_of: What a person writes to give one; None for an option of a command.

    Raises:
        ConfigError: A file is malformed, or a setting is unknown or has a wrong value.
    """
    merged = {setting.key: Value(setting.default, "default", setting.key) for setting in SETTINGS}
    user_file = Path(env.get("GGUFCLUSTER_CONFIG") or paths_from_env(env).config / "config.toml")
    if env.get("GGUFCLUSTER_CONFIG") and not user_file.is_file():
        raise ConfigError("no such file", source=f"GGUFCLUSTER_CONFIG={user_file}")
    for file in (user_file, folder / LOCAL_FILE):
        if file.is_file():
            found = _flatten(_parse(file), source=str(file))
            merged |= _read_all(found, str(file), _line_of(file))
    _refuse_slips(env)
    for setting in SETTINGS:
        if setting.variable in env:
            value = _read(setting, env[setting.variable], source=setting.variable)
            merged[setting.key] = Value(value, setting.variable, setting.variable)
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    place_of = name_of or (lambda setting: setting.option)
    return Settings(merged | _read_all(given, "arguments" if name_of else "command line", place_of))


def _line_of(file: Path) -> Callable[[Setting], str]:
    return lambda setting: f"{file}, {setting.key}"


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", source=str(file)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"is not valid TOML: {error}", source=str(file)) from error


def _flatten(table: Mapping[str, Any], *, source: str, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in table.items():
        key = prefix + name
        if isinstance(value, dict) and key in _TABLES:
            flat |= _flatten(value, source=source, prefix=key + ".")
        elif key in _BY_KEY:
            flat[key] = value
        elif key in _TABLES:
            raise ConfigError(f"{key!r} is a table of settings: write [{key}]", source=source)
        else:
            near = _nearest(key, (*_BY_KEY, *_TABLES), cutoff=0.6)
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigError(f"unknown setting {key!r}{hint}", source=source)
    return flat


def _refuse_slips(env: Mapping[str, str]) -> None:
    """Refuse a variable that nobody reads and that looks like one of ours."""
    known = {setting.variable.removeprefix(_PREFIX) for setting in SETTINGS}
    for name in env:
        key = name.removeprefix(_PREFIX)
        if key != name and key not in known and (near := _nearest(key, known, cutoff=_SLIP)):
            raise ConfigError(f"no such setting; did you mean {_PREFIX}{near}?", source=name)


def _nearest(name: str, known: Iterable[str], *, cutoff: float) -> str:
    return next(iter(get_close_matches(name, known, n=1, cutoff=cutoff)), "")


def _read_all(
    given: Mapping[str, Any], origin: str, place_of: Callable[[Setting], str]
) -> dict[str, Value]:
    merged = {}
    for key, value in given.items():
        place = place_of(_BY_KEY[key])
        merged[key] = Value(_read(_BY_KEY[key], value, source=place), origin, place)
    return merged


def _read(setting: Setting, value: Any, *, source: str) -> Any:
    try:
        return setting.read(value)
    except ValueError as error:
        raise ConfigError(f"{error} (got {value!r})", source=source) from None
