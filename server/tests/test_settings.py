"""Settings: defaults that are right for a laptop, and values that are refused by name."""

import os
import re
from dataclasses import Field, fields
from pathlib import Path

import pytest

from mooring.settings import PREFIX, SettingRefused, Settings, default_data_dir, read_settings
from tests.support.rows import every_row


def test_an_empty_environment_gives_the_defaults() -> None:
    assert read_settings({}) == Settings()
    assert read_settings({"MOORING_LISTEN_PORT": "", "PATH": "/bin", "LISTEN_PORT": "1"}) == Settings()


def test_every_setting_explains_itself() -> None:
    for each in fields(Settings):
        assert re.fullmatch("[a-z]+(_[a-z]+)*", each.name)
        assert each.metadata["help"].rstrip("`)").endswith((".", "error"))
        assert type(each.default) in (str, int, float)


def test_what_the_environment_says_is_taken_in_its_form() -> None:
    settings = read_settings(
        {
            "MOORING_LISTEN_PORT": "0",
            "MOORING_TOKEN_CACHE_SECONDS": "2.5",
            "MOORING_LOG_LEVEL": "debug",
            "MOORING_DATABASE_URL": "postgresql://db/mooring",
        }
    )
    assert (settings.listen_port, settings.token_cache_seconds, settings.log_level) == (0, 2.5, "debug")
    assert settings.database_url == "postgresql://db/mooring"


@every_row(
    ("name", "text"),
    [
        ("LISTEN_PORT", "http"),
        ("LISTEN_PORT", "1.5"),
        ("LISTEN_PORT", "-1"),
        ("LISTEN_PORT", "65536"),
        ("KEEP_ALIVE_SECONDS", "0"),
        ("DATABASE_CONNECTIONS", "0"),
        ("DATABASE_CONNECT_TIMEOUT_SECONDS", "0.9"),
        ("TOKEN_CACHE_SECONDS", "five"),
        ("TOKEN_CACHE_SECONDS", "-0.1"),
        ("TOKEN_CACHE_SECONDS", "nan"),
        ("EVENT_RETENTION_DAYS", "inf"),
        ("IDEMPOTENCY_RETENTION_HOURS", "23.9"),
        ("IDEMPOTENCY_RETENTION_HOURS", "nan"),
        ("LOG_LEVEL", "INFO"),
        ("LOG_FORMAT", "xml"),
    ],
)
def test_a_value_that_is_not_taken_is_refused_by_the_name_of_its_setting(name: str, text: str) -> None:
    with pytest.raises(SettingRefused, match=f"^{PREFIX}{name} must "):
        read_settings({f"{PREFIX}{name}": text})


@every_row("each", [each for each in fields(Settings) if type(each.default) is not str], ids=lambda f: f.name)
def test_no_number_is_taken_below_zero_or_without_end(each: Field[object]) -> None:
    for text in ("-1", "nan", "inf", "-inf", "many", "0x10"):
        with pytest.raises(SettingRefused):
            read_settings({f"{PREFIX}{each.name.upper()}": text})


# Where things lie


def test_the_data_lies_where_the_system_or_the_user_keeps_such_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_data_dir() == Path("/var/lib/mooring")

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_data_dir() == Path("/home/ada/.local/share/mooring")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_data_dir() == Path("/data/mooring")


def test_the_master_key_lies_beside_the_data_and_not_in_it() -> None:
    settings = read_settings({"MOORING_DATA_DIR": "/srv/mooring"})

    assert settings.data_path == Path("/srv/mooring")
    assert settings.master_key_path == Path("/srv/mooring-keys/master.key")
    assert not settings.master_key_path.is_relative_to(settings.data_path)
    assert read_settings({"MOORING_MASTER_KEY_FILE": "/etc/key"}).master_key_path == Path("/etc/key")


@pytest.mark.parametrize(
    "place", ["data/master.key", "data/deep/master.key", "other/../data/master.key", "link/master.key"]
)
def test_a_master_key_within_the_data_is_refused_however_it_is_written(place: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    environment = {"MOORING_DATA_DIR": str(tmp_path / "data"), "MOORING_MASTER_KEY_FILE": str(tmp_path / place)}

    with pytest.raises(SettingRefused, match="MOORING_MASTER_KEY_FILE must be outside"):
        read_settings(environment)
    # With a database of one's own there is no directory of ours to keep it out of.
    own = read_settings(environment | {"MOORING_DATABASE_URL": "postgresql://db/mooring"})
    assert own.master_key_path == tmp_path / place
