"""Master keys from a command, and wrapped keys that a command unwraps (a simulated key service)."""

import base64
import sys
from pathlib import Path

import pytest

from mooring.gateways import master_key_source
from mooring.gateways.master_key_source import key_source
from mooring.gateways.secrets import MasterKey, MasterKeyRefused, SecretBox, new_key
from mooring.settings import SettingRefused, read_settings
from tests.support.rows import every_row

OLD, NEW = new_key(), new_key()
MASK = 0x5A


def line(key: MasterKey) -> str:
    return f"{key.id} {base64.b64encode(key.key).decode()}"


def printing(tmp_path: Path, *lines: str) -> str:
    """A command that prints what a file of the secret store has."""
    store = tmp_path / "store"
    store.write_text("\n".join(lines))
    return f"cat {store}"


def simulated_kms(tmp_path: Path) -> str:
    """A command that unwraps as a key service would; here wrapping is a mask."""
    program = tmp_path / "unwrap.py"
    program.write_text(
        "import base64, sys\n"
        f"print(base64.b64encode(bytes(each ^ {MASK} for each in sys.stdin.buffer.read())).decode())\n"
    )
    return f"{sys.executable} {program}"


def wrapped(key: MasterKey) -> str:
    return f"{key.id} wrapped:{base64.b64encode(bytes(each ^ MASK for each in key.key)).decode()}"


def test_the_keys_of_a_command_open_and_a_rotation_is_a_key_in_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_key_source, "RUN_AGAIN_SECONDS", -1.0)
    command = printing(tmp_path, line(OLD))
    old = SecretBox(key_source(tmp_path / "none", command))
    sealed = old.seal(b"secret", id="sec_1", tenant_id=None, purpose="test")
    printing(tmp_path, line(NEW), line(OLD))
    box = SecretBox(key_source(tmp_path / "none", command))
    assert box.current_key_id == NEW.id
    moved = box.rewrap(sealed)
    assert (moved.master_key_id, box.unseal(moved)) == (NEW.id, b"secret")
    assert old.unseal(moved) == b"secret", "a process that runs already asks the command for a key that it lacks"


def test_wrapped_keys_are_unwrapped_by_the_hook_and_the_plain_key_is_in_no_file(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    file.write_text(f"{wrapped(NEW)}\n{wrapped(OLD)}\n")
    file.chmod(0o600)
    source = key_source(file, "", simulated_kms(tmp_path))
    assert source.read() == [NEW, OLD]
    assert source.ready([OLD.id]) is False
    box = SecretBox(source)
    assert box.unseal(box.seal(b"secret", id="sec_1", tenant_id=None, purpose="test")) == b"secret"


REFUSED = {
    "no such program": ("/no/such/program", "cannot be started"),
    "fails": ("sh -c 'echo hidden; echo hidden >&2; exit 3'", "ended with 3; run it by hand"),
    "hangs": ("sleep 60", "took longer than 0.3 s"),
    "hangs with a child": ("sh -c 'sleep 60 & wait'", "took longer than 0.3 s"),
    "floods": ("yes hidden", "printed more than"),
    "prints nothing": ("true", "holds no key"),
    "prints no key": ("echo hidden", "holds 0 bytes, not 32"),
    "prints a short key": ("echo id aGlkZGVu", "holds 6 bytes, not 32"),
    "is no command": ("'", "is not a command"),
    "lacks a key": (f"echo {line(NEW)}", f"does not give the key {OLD.id}"),
}


@every_row("what", list(REFUSED))
def test_a_command_that_gives_no_key_is_refused_and_nothing_of_it_is_shown(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_key_source, "COMMAND_SECONDS_MAX", 0.3)
    command, why = REFUSED[what]
    with pytest.raises(MasterKeyRefused, match=why) as refused:
        key_source(tmp_path, command).ready([OLD.id])
    assert "MOORING_MASTER_KEY_COMMAND" in str(refused.value)
    assert not {"hidden", "aGlkZGVu"} & set(str(refused.value).split())


def test_a_wrapped_file_that_is_missing_or_plain_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    source = key_source(file, "", simulated_kms(tmp_path))
    with pytest.raises(MasterKeyRefused, match="you create it yourself"):
        source.ready([])
    file.write_text(line(NEW))
    file.chmod(0o600)
    with pytest.raises(MasterKeyRefused, match="is not `<key id> wrapped:<base64>`"):
        source.ready([])
    file.chmod(0o644)
    with pytest.raises(MasterKeyRefused, match="chmod 600"):
        source.ready([])


def test_a_command_and_a_file_at_once_are_refused() -> None:
    both = {"MOORING_MASTER_KEY_COMMAND": "cat key", "MOORING_MASTER_KEY_FILE": "/key"}
    with pytest.raises(SettingRefused, match="unset MOORING_MASTER_KEY_FILE"):
        read_settings(both)
