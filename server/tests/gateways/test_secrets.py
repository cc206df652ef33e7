"""Secrets at rest: what opens, what does not, and what a crash leaves behind."""

import base64
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from mooring.core.kernel.secret import Sealed
from mooring.gateways.secrets import (
    CannotUnseal,
    MasterKey,
    MasterKeyRefused,
    SecretBox,
    make_key_file,
    new_key,
    read_keys,
    write_keys,
)

PLAIN = b"whsec of a webhook"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys" / "master.key"
    assert make_key_file(path)
    return path


@pytest.fixture
def box(path: Path) -> SecretBox:
    return SecretBox(path)


def seal(box: SecretBox, **bound: str | None) -> Sealed:
    wanted: dict[str, str | None] = {"id": "sec_1", "tenant_id": "ten_1", "purpose": "webhook", **bound}
    return box.seal(PLAIN, id=str(wanted["id"]), tenant_id=wanted["tenant_id"], purpose=str(wanted["purpose"]))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# Sealing


def test_a_sealed_secret_opens_again_and_shows_nothing_meanwhile(box: SecretBox) -> None:
    sealed = seal(box)

    assert box.unseal(sealed) == PLAIN
    assert (sealed.id, sealed.tenant_id, sealed.purpose) == ("sec_1", "ten_1", "webhook")
    assert sealed.master_key_id == box.current_key_id
    assert PLAIN not in sealed.ciphertext + sealed.wrapped_key


def test_sealing_twice_gives_nothing_in_common(box: SecretBox) -> None:
    one, other = seal(box), seal(box)

    assert one.ciphertext[:12] != other.ciphertext[:12]
    assert one.wrapped_key[:12] != other.wrapped_key[:12]
    assert one.ciphertext != other.ciphertext
    assert box.unseal(replace(one)) == box.unseal(other) == PLAIN


@pytest.mark.parametrize("plain", [b"", b"\x00", b"x" * 100_000])
def test_any_bytes_can_be_sealed(plain: bytes, box: SecretBox) -> None:
    assert box.unseal(box.seal(plain, id="sec_1", tenant_id=None, purpose="signing")) == plain


@pytest.mark.parametrize(
    "moved",
    [
        {"id": "sec_2"},
        {"tenant_id": "ten_2"},
        {"tenant_id": None},
        {"purpose": "signing"},
    ],
)
def test_a_secret_that_was_moved_to_another_row_does_not_open(moved: dict[str, str | None], box: SecretBox) -> None:
    with pytest.raises(CannotUnseal, match="was moved or changed"):
        box.unseal(replace(seal(box), **moved))  # type: ignore[arg-type]


def test_parts_of_two_secrets_do_not_open_together(box: SecretBox) -> None:
    one, other = seal(box), seal(box)
    with pytest.raises(CannotUnseal, match="was changed"):
        box.unseal(replace(one, ciphertext=other.ciphertext))
    with pytest.raises(CannotUnseal, match="was changed"):
        box.unseal(replace(one, wrapped_key=other.wrapped_key))


@pytest.mark.parametrize("part", ["ciphertext", "wrapped_key"])
def test_a_secret_does_not_open_when_any_bit_of_it_was_touched(part: str, box: SecretBox) -> None:
    sealed = seal(box)
    whole: bytes = getattr(sealed, part)
    for at in range(len(whole)):
        touched = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(CannotUnseal):
            box.unseal(replace(sealed, **{part: touched}))  # type: ignore[arg-type]
    for length in (0, 5, 12, len(whole) - 1):
        with pytest.raises(CannotUnseal):
            box.unseal(replace(sealed, **{part: whole[:length]}))  # type: ignore[arg-type]


def test_a_refusal_to_open_names_the_secret_and_shows_nothing_of_it(box: SecretBox) -> None:
    sealed = seal(box)
    with pytest.raises(CannotUnseal) as refused:
        box.unseal(replace(sealed, ciphertext=sealed.ciphertext[:-1] + b"\x00"))
    assert "sec_1" in str(refused.value)
    assert sealed.ciphertext.hex() not in str(refused.value)


# The key file


def test_the_key_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        path = tmp_path / "keys" / "master.key"
        assert make_key_file(path)
    finally:
        os.umask(previous)

    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    ((key_id, key),) = read_keys(path)
    assert key_id.startswith("mk_")
    assert len(key) == 32
    assert not make_key_file(path)
    assert read_keys(path) == [(key_id, key)]
    assert os.listdir(path.parent) == ["master.key"]


def test_of_many_first_starts_at_once_one_key_counts(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "master.key"
    ready = threading.Barrier(8)
    found: list[list[MasterKey]] = []

    def start() -> None:
        ready.wait()
        make_key_file(path)
        found.append(read_keys(path))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert {keys[0] for keys in found} == {read_keys(path)[0]}
    assert os.listdir(path.parent) == ["master.key"]


@pytest.mark.parametrize("open_to", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_file_that_others_may_read_is_refused(open_to: int, path: Path) -> None:
    path.chmod(open_to)
    with pytest.raises(MasterKeyRefused, match="run: chmod 600"):
        SecretBox(path)


LINE = f"mk_1 {base64.b64encode(b'k' * 32).decode()}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "holds no key"),
        ("\n \n", "holds no key"),
        ("mk_1\n", "holds 0 bytes"),
        ("mk_1 !!!\n", "line 1 .* is not"),
        (f"{LINE}\nmk_2 {base64.b64encode(b'short').decode()}\n", "line 2 .* holds 5 bytes"),
        (f"{LINE}\n{LINE}\n", "line 2 .* names the key mk_1 a second time"),
        ("mk_1 schlüssel\n", "cannot read"),
    ],
)
def test_a_key_file_that_cannot_be_used_says_why_and_shows_no_key(text: str, why: str, path: Path) -> None:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MasterKeyRefused, match=why) as refused:
        SecretBox(path)
    assert str(path) in str(refused.value)
    assert LINE.split()[1] not in str(refused.value)
    assert b"kkkk" not in str(refused.value).encode()


def test_a_key_file_that_is_not_there_is_refused_at_the_start_and_before_sealing(path: Path, box: SecretBox) -> None:
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(MasterKeyRefused, match="cannot read the master key file"):
        SecretBox(path)
    # A secret sealed with a key that no file holds any more would be lost with the process.
    with pytest.raises(MasterKeyRefused, match="cannot read the master key file"):
        seal(box)


def test_spaces_and_empty_lines_do_not_matter(path: Path) -> None:
    path.write_text(f"\n  {LINE}  \n\n")
    assert read_keys(path) == [("mk_1", b"k" * 32)]


# Rotation


def test_a_rotation_wraps_again_and_leaves_the_secret_alone(path: Path, box: SecretBox) -> None:
    sealed = seal(box)
    write_keys(path, [new_key(), *read_keys(path)])
    rotating = SecretBox(path)
    wrapped = rotating.rewrap(sealed)

    assert wrapped.master_key_id == rotating.current_key_id != sealed.master_key_id
    assert wrapped.ciphertext == sealed.ciphertext
    assert rotating.unseal(wrapped) == rotating.unseal(sealed) == PLAIN
    write_keys(path, read_keys(path)[:1])
    only_new = SecretBox(path)
    assert only_new.unseal(wrapped) == PLAIN
    with pytest.raises(CannotUnseal, match="add that key again"):
        only_new.unseal(sealed)
    assert mode(path) == 0o600


def test_a_process_that_runs_through_a_rotation_opens_both_and_seals_with_the_new_key(
    path: Path, box: SecretBox
) -> None:
    before = seal(box)
    write_keys(path, [new_key(), *read_keys(path)])
    elsewhere = SecretBox(path)

    assert box.unseal(seal(elsewhere)) == PLAIN
    assert box.unseal(elsewhere.rewrap(before)) == PLAIN
    assert seal(box).master_key_id == elsewhere.current_key_id


def test_a_process_seals_with_the_new_key_even_before_it_meets_it(path: Path, box: SecretBox) -> None:
    old = box.current_key_id
    write_keys(path, [new_key(), *read_keys(path)])

    assert seal(box).master_key_id == read_keys(path)[0][0] != old


def test_wrapping_what_is_wrapped_already_does_no_harm(path: Path, box: SecretBox) -> None:
    sealed = seal(box)
    write_keys(path, [new_key(), *read_keys(path)])
    rotating = SecretBox(path)
    once = rotating.rewrap(sealed)
    twice = rotating.rewrap(once)

    assert twice.master_key_id == once.master_key_id
    assert rotating.unseal(twice) == PLAIN


def test_a_moved_secret_cannot_be_wrapped_again_and_made_whole(box: SecretBox) -> None:
    with pytest.raises(CannotUnseal):
        box.rewrap(replace(seal(box), tenant_id="ten_2"))


@pytest.mark.parametrize("step", ["fdopen", "fsync", "replace"])
def test_a_crash_at_any_step_of_writing_leaves_a_file_that_opens_everything(
    step: str, path: Path, box: SecretBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed, before = seal(box), path.read_bytes()

    def crash(*_: object, **__: object) -> None:
        raise OSError("the machine stops here")

    keys = [new_key(), *read_keys(path)]
    with monkeypatch.context() as crashing:
        crashing.setattr(os, step, crash)
        with pytest.raises(OSError, match="stops here"):
            write_keys(path, keys)

    assert path.read_bytes() == before
    assert SecretBox(path).unseal(sealed) == PLAIN
    assert os.listdir(path.parent) == ["master.key"]


def test_a_crash_between_the_steps_of_a_rotation_is_healed_by_running_it_again(path: Path, box: SecretBox) -> None:
    rows = {name: seal(box, id=name) for name in ("sec_1", "sec_2", "sec_3")}

    def rotate(wraps: int) -> SecretBox:
        """The steps of a rotation, ending after so many secrets were wrapped."""
        write_keys(path, [new_key(), *read_keys(path)])
        rotating = SecretBox(path)
        for name in [name for name, row in rows.items() if row.master_key_id != rotating.current_key_id][:wraps]:
            rows[name] = rotating.rewrap(rows[name])
        return rotating

    for crashed_after in (0, 1, 2):
        rotate(crashed_after)
        assert [SecretBox(path).unseal(row) for row in rows.values()] == [PLAIN] * 3
    whole = rotate(3)
    write_keys(path, read_keys(path)[:1])

    assert {row.master_key_id for row in rows.values()} == {whole.current_key_id}
    assert [SecretBox(path).unseal(row) for row in rows.values()] == [PLAIN] * 3
