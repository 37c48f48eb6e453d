"""Settings: where they come from and which are refused."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ggufcluster
from ggufcluster.config import BACKENDS, KV_TYPES, SETTINGS, Settings, load_settings
from ggufcluster.core.build_id import Backend
from ggufcluster.core.kv_cache import KV_ELEMENT_BYTES
from ggufcluster.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

EXAMPLE = Path(ggufcluster.__file__).with_name("example.toml")


def write(path: Path, text: str) -> Path:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load(
    tmp_path: Path,
    env: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Load with a home and a current folder of the test's own."""
    return load_settings(
        {"HOME": str(tmp_path / "home"), **(env or {})}, folder=tmp_path / "here", flags=flags
    )


def test_the_example_shows_every_setting() -> None:
    """The shipped example names each setting once, by its place, and no other."""
    flat: dict[str, object] = {}
    for name, value in tomllib.loads(EXAMPLE.read_text(encoding="utf-8")).items():
        group = {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {}
        flat |= group or {name: value}
    assert sorted(flat) == sorted(setting.key for setting in SETTINGS)


def test_the_example_is_valid(tmp_path: Path) -> None:
    """Copied as it is, the example is accepted whole."""
    write(tmp_path / "here" / "ggufcluster.toml", EXAMPLE.read_text(encoding="utf-8"))
    settings = load(tmp_path)
    assert settings["workers.hosts"] == ("10.20.20.2", "spark@10.20.20.3:22")
    assert settings["ctx"] == 131072
    assert {value.origin for _, value in settings.items()} == {
        str(tmp_path / "here" / "ggufcluster.toml")
    }


def test_defaults_are_values_that_could_be_set(tmp_path: Path) -> None:
    """Each default is None or passes its own reader unchanged."""
    settings = load(tmp_path)
    for setting in SETTINGS:
        assert settings.origin(setting.key) == "default"
        if setting.default is not None:
            assert setting.read(setting.default) == setting.default


def test_choices_are_those_of_the_core() -> None:
    """Backends and cache types that may be set are known where they are used."""
    assert set(BACKENDS) == {"auto", *(backend.value for backend in Backend)}
    assert set(KV_TYPES) <= set(KV_ELEMENT_BYTES)


def test_the_nearer_source_wins(tmp_path: Path) -> None:
    """Flags go before the environment, that before the local file, that before the user's."""
    user = write(
        tmp_path / "home/.config/ggufcluster/config.toml",
        "ctx = 1001\nparallel = 2\nubatch = 17\n[head]\nport = 1",
    )
    local = write(tmp_path / "here/ggufcluster.toml", "ctx = 1002\nparallel = 3\n[head]\nport = 2")
    env = {"GGUFCLUSTER_CTX": "1003", "GGUFCLUSTER_HEAD_PORT": "3"}
    settings = load(tmp_path, env, {"head.port": 4, "ctx": None})
    found = {key: (settings[key], settings.origin(key)) for key in ("head.port", "ctx")}
    assert found == {"head.port": (4, "command line"), "ctx": (1003, "GGUFCLUSTER_CTX")}
    assert (settings["parallel"], settings.origin("parallel")) == (3, str(local))
    assert (settings["ubatch"], settings.origin("ubatch")) == (17, str(user))
    assert (settings["kv_type"], settings.origin("kv_type")) == (None, "default")


def test_a_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    """GGUFCLUSTER_CONFIG takes the place of the user's file."""
    write(tmp_path / "home/.config/ggufcluster/config.toml", "parallel = 2")
    mine = write(tmp_path / "mine.toml", "ubatch = 64")
    settings = load(tmp_path, {"GGUFCLUSTER_CONFIG": str(mine)})
    assert (settings["ubatch"], settings["parallel"]) == (64, 1)


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    """A file that the environment names and that is missing is an error, not ignored."""
    with pytest.raises(ConfigError, match=r"^GGUFCLUSTER_CONFIG=/nowhere: no such file"):
        load(tmp_path, {"GGUFCLUSTER_CONFIG": "/nowhere"})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("port = 1", "unknown setting 'port'"),
        ("[head]\nprot = 1", "unknown setting 'head.prot'; did you mean head.port?"),
        ("[haed]\n", "unknown setting 'haed'; did you mean head?"),
        ("head = 1", "'head' is a table of settings: write [head]"),
        ("ctx = ", "is not valid TOML"),
        ("ctx = 1\nctx = 2", "is not valid TOML"),
        ("model = '\x00'", "is not valid TOML"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, reason: str) -> None:
    """The error names the file and what is wrong in it."""
    file = write(tmp_path / "here/ggufcluster.toml", text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    assert caught.value.source == str(file)
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("text", "key", "reason"),
    [
        ("ctx = 12", "ctx", "must be between 256 and 16777216, or max (got 12)"),
        ("ctx = 1.5", "ctx", "must be a whole number, or max (got 1.5)"),
        ("ctx = true", "ctx", "must be a whole number, or max (got True)"),
        ("kv_type = 'q2'", "kv_type", "must be one of f16, q8_0, q4_0 (got 'q2')"),
        ("model = 3", "model", "must be text (got 3)"),
        ("model = ' '", "model", "must not be empty (got ' ')"),
        ("[head.port]\nx = 1", "head.port", "must be a whole number"),
        ("[workers]\nhosts = 3", "workers.hosts", "must be a list (got 3)"),
        ("[workers]\nhosts = [3]", "workers.hosts", "must be a list of texts (got [3])"),
        ("[head]\ntool_check = 'maybe'", "head.tool_check", "must be true or false (got 'maybe')"),
        ("[engine]\nbackend = ['cpu']", "engine.backend", "must be one of auto, cpu, cuda"),
    ],
)
def test_a_bad_value_is_named_with_its_place(
    tmp_path: Path, text: str, key: str, reason: str
) -> None:
    """The error names file, setting, what it must be and what it is."""
    file = write(tmp_path / "here/ggufcluster.toml", text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path)
    assert caught.value.source == f"{file}, {key}"
    assert caught.value.reason.startswith(reason)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are no TOML."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here/ggufcluster.toml").write_bytes(b"model = '\xff'")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load(tmp_path)


def test_variables_are_read_as_words(tmp_path: Path) -> None:
    """Lists are parted by commas or spaces, truth is true, yes or 1, numbers are digits."""
    settings = load(
        tmp_path,
        {
            "GGUFCLUSTER_WORKERS_HOSTS": "10.20.20.2, spark@b",
            "GGUFCLUSTER_HEAD_DROP_CACHES": "Yes",
            "GGUFCLUSTER_HEAD_TOOL_CHECK": "0",
            "GGUFCLUSTER_PARALLEL": "4",
        },
    )
    assert settings["workers.hosts"] == ("10.20.20.2", "spark@b")
    assert settings["head.drop_caches"] is True
    assert settings["head.tool_check"] is False
    assert settings["parallel"] == 4


def test_a_bad_variable_is_named(tmp_path: Path) -> None:
    """The error names the variable."""
    with pytest.raises(ConfigError, match="GGUFCLUSTER_PARALLEL: must be a whole number"):
        load(tmp_path, {"GGUFCLUSTER_PARALLEL": "many"})


def test_a_slip_in_a_variable_is_no_silence(tmp_path: Path) -> None:
    """A variable that nearly has the name of a setting is refused with the name that was meant."""
    meant = r"GGUFCLUSTER_HEAD_PROT: no such setting; did you mean GGUFCLUSTER_HEAD_PORT\?"
    with pytest.raises(ConfigError, match=meant):
        load(tmp_path, {"GGUFCLUSTER_HEAD_PROT": "9000"})


@pytest.mark.parametrize("name", ["MSA_SELECT", "MSA_LEADING", "HANDSHAKE_SECONDS", "RUN"])
def test_variables_of_the_engine_are_left_alone(tmp_path: Path, name: str) -> None:
    """What the engine or a managed process reads is no setting and no slip."""
    assert load(tmp_path, {f"GGUFCLUSTER_{name}": "1"})["msa"] == "auto"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"ctx": 1}, "--ctx: must be between"),
        ({"head.port": 0}, "--port: must be between 1 and 65535 (got 0)"),
        ({"workers.hosts": 3}, "--worker: must be a list"),
        ({"template_style": "odd"}, "--template-style: must be one of"),
    ],
)
def test_a_bad_flag_is_called_what_was_typed(
    tmp_path: Path, flags: dict[str, Any], says: str
) -> None:
    """The error names the option, not the setting that it stands for."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, flags=flags)
    assert str(caught.value).startswith(says)


def test_a_bad_argument_is_called_what_was_written(tmp_path: Path) -> None:
    """From Python the error names the keyword argument."""
    env = {"HOME": str(tmp_path)}
    flags = {"head.port": 0}
    with pytest.raises(ConfigError, match=r"^port: must be between"):
        load_settings(env, folder=tmp_path, flags=flags, name_of=lambda one: one.argument)


def test_each_setting_knows_where_it_can_be_corrected(tmp_path: Path) -> None:
    """A later complaint is led to the option, the variable or the line of a file."""
    file = write(tmp_path / "here/ggufcluster.toml", "ubatch = 64\n[head]\nport = 2\nhost = '::1'")
    settings = load(tmp_path, {"GGUFCLUSTER_HEAD_PORT": "3"}, {"workers.hosts": ("local",)})
    keys = ("workers.hosts", "head.port", "head.host", "ubatch", "ctx", "/a/file")
    assert [settings.place(key) for key in keys] == [
        "--worker",
        "GGUFCLUSTER_HEAD_PORT",
        f"{file}, head.host",
        f"{file}, ubatch",
        "ctx",
        "/a/file",
    ]


def test_variables_are_named_after_keys() -> None:
    """Every setting has a variable of its own."""
    names = [setting.variable for setting in SETTINGS]
    assert "GGUFCLUSTER_HEAD_API_KEY_FILE" in names
    assert len(set(names)) == len(SETTINGS)


def test_without_a_home_there_is_an_error(tmp_path: Path) -> None:
    """A service without HOME is told so."""
    with pytest.raises(ConfigError, match="HOME"):
        load_settings({}, folder=tmp_path)


@pytest.mark.parametrize(("text", "value"), [("max", "max"), ("4096", 4096)])
def test_a_context_is_a_number_or_max(tmp_path: Path, text: str, value: int | str) -> None:
    """``max`` stands for as many tokens as fit, from every source."""
    assert load(tmp_path, {"GGUFCLUSTER_CTX": text})["ctx"] == value
    assert load(tmp_path, {}, {"ctx": text})["ctx"] == value
