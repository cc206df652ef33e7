"""Secrets at rest: envelope encryption with a master key from outside of the database.

Each secret is encrypted with its own data key (AES-256-GCM), and the data key with the master key. Both are bound to
the secret's id, tenant and purpose, so a ciphertext that is moved to another row cannot be decrypted. The master keys
come from a command, or are in a file outside of the database, mode 0600, one key per line, the newest first:
`<key id> <base64 of 32 bytes>`. A rotation adds a new key at the top, rewraps every data key, and drops all but the
last two keys; after a crash in between, the file still has every key that is needed. A running process rereads the
file when it changed, at the latest when it seals a secret or meets an unknown key id.
"""

import base64
import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mooring.core.kernel.secret import Sealed

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12


class MasterKeyRefused(Exception):
    """The master key file cannot be used; the message says why and what to do, and never contains a key."""


class CannotUnseal(Exception):
    """A sealed secret cannot be decrypted: its master key is missing, or it was tampered with."""


class MasterKey(NamedTuple):
    id: str
    key: bytes


class KeySource(Protocol):
    """Where the keys come from: the file, or what `gateways/master_key_source.py` has."""

    @property
    def name(self) -> str:
        """What errors call it."""

    def version(self) -> tuple[int, int]:
        """Changes when the keys have to be read again."""

    def read(self) -> list[MasterKey]:
        """The keys, the current one first."""

    def ready(self, needed: Sequence[str]) -> bool:
        """Check that the keys in `needed` are there; returns whether the first key was created."""


class FileKeySource:
    """The master key file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = str(path)

    def version(self) -> tuple[int, int]:
        return file_version(self._path)

    def read(self) -> list[MasterKey]:
        return read_keys(self._path)

    def ready(self, needed: Sequence[str]) -> bool:
        return ready_key_file(self._path, needed)


class SecretBox:
    """Seals and unseals with the keys of one source."""

    def __init__(self, source: KeySource | Path) -> None:
        self._source: KeySource = FileKeySource(source) if isinstance(source, Path) else source
        self._keys: dict[str, AESGCM] = {}
        self._current = ""
        self._version = (0, 0)
        self._read()

    @property
    def current_key_id(self) -> str:
        """The key that new secrets are sealed with."""
        return self._current

    def seal(self, secret: bytes, *, id: str, tenant_id: str | None, purpose: str) -> Sealed:
        """Encrypt under a new data key."""
        if self._source.version() != self._version:
            self._read()  # the key was rotated: new secrets must use the new key
        bound = _bound(id, tenant_id, purpose)
        data_key = secrets.token_bytes(KEY_BYTES)
        return Sealed(
            id=id,
            tenant_id=tenant_id,
            purpose=purpose,
            master_key_id=self._current,
            wrapped_key=_encrypt(self._keys[self._current], data_key, bound),
            ciphertext=_encrypt(AESGCM(data_key), secret, bound),
        )

    def unseal(self, sealed: Sealed) -> bytes:
        """Decrypt, or raise CannotUnseal."""
        bound = _bound(sealed.id, sealed.tenant_id, sealed.purpose)
        data_key = self._unwrap(sealed, bound)
        try:
            return AESGCM(data_key).decrypt(sealed.ciphertext[:NONCE_BYTES], sealed.ciphertext[NONCE_BYTES:], bound)
        except (InvalidTag, ValueError) as error:  # ValueError: too short to contain the nonce
            raise CannotUnseal(f"secret {sealed.id} was changed after it was sealed") from error

    def rewrap(self, sealed: Sealed) -> Sealed:
        """The same secret with its data key under the current master key; the ciphertext does not change."""
        bound = _bound(sealed.id, sealed.tenant_id, sealed.purpose)
        wrapped = _encrypt(self._keys[self._current], self._unwrap(sealed, bound), bound)
        return Sealed(sealed.id, sealed.tenant_id, sealed.purpose, self._current, wrapped, sealed.ciphertext)

    def _unwrap(self, sealed: Sealed, bound: bytes) -> bytes:
        if sealed.master_key_id not in self._keys:
            self._read()
        key = self._keys.get(sealed.master_key_id)
        if key is None:
            raise CannotUnseal(
                f"secret {sealed.id} is sealed with master key {sealed.master_key_id}, which {self._source.name} "
                "does not have; add that key again, on its own line"
            )
        try:
            return key.decrypt(sealed.wrapped_key[:NONCE_BYTES], sealed.wrapped_key[NONCE_BYTES:], bound)
        except (InvalidTag, ValueError) as error:
            raise CannotUnseal(f"secret {sealed.id} was moved or changed after it was sealed") from error

    def _read(self) -> None:
        version = self._source.version()
        keys = self._source.read()
        self._version = version
        self._keys = {key_id: AESGCM(key) for key_id, key in keys}
        self._current = keys[0].id


def file_version(path: Path) -> tuple[int, int]:
    """Identifies the state of the file; it is always replaced as a whole, by a new file."""
    try:
        found = path.stat()
    except OSError as error:
        raise MasterKeyRefused(f"cannot read the master key file {path}: {error}") from error
    return found.st_mtime_ns, found.st_ino


def read_keys(path: Path) -> list[MasterKey]:
    """The keys of the file, the current one first."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise MasterKeyRefused(f"cannot read the master key file {path}: {error}") from error
    check_mode(path)
    return parse_keys(text, str(path))


def check_mode(path: Path) -> None:
    """Refuse a file that others may read."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise MasterKeyRefused(f"cannot read the master key file {path}: {error}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise MasterKeyRefused(f"other users may read the master key file {path}; run: chmod 600 {path}")


def parse_keys(text: str, name: str) -> list[MasterKey]:
    """The keys in lines of `<key id> <base64>`; `name` is what errors call their source."""
    keys: list[MasterKey] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        key_id, _, encoded = line.strip().partition(" ")
        try:
            key = base64.b64decode(encoded.strip(), validate=True)
        except ValueError:
            raise MasterKeyRefused(f"line {number} of {name} is not `<key id> <base64>`") from None
        if len(key) != KEY_BYTES:
            raise MasterKeyRefused(f"line {number} of {name} holds {len(key)} bytes, not {KEY_BYTES}")
        if key_id in (known for known, _ in keys):
            raise MasterKeyRefused(f"line {number} of {name} names the key {key_id} a second time")
        keys.append(MasterKey(key_id, key))
    if not keys:
        raise MasterKeyRefused(f"{name} holds no key; restore it from a backup")
    return keys


def ready_key_file(path: Path, needed: Sequence[str]) -> bool:
    """Create the file if it does not exist and no secret needs it; returns whether it was created.

    A file that is missing, or that lacks a key in `needed`, is not replaced: the sealed secrets would be lost.
    """
    if not needed:
        return make_key_file(path)
    restore = f"restore the master key file {path} from its copy: stored secrets need the key {needed[0]}"
    if not path.exists():
        raise MasterKeyRefused(f"{path} is missing; {restore}")
    known = {key_id for key_id, _ in read_keys(path)}
    if lacking := sorted(set(needed) - known):
        raise MasterKeyRefused(f"{path} does not have the key {lacking[0]}, which stored secrets need; {restore}")
    return False


def make_key_file(path: Path) -> bool:
    """Create the file with one key if it does not exist; returns whether it was created."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_keys(path, [new_key()], exclusive=True)
    return True


def new_key() -> MasterKey:
    return MasterKey(f"mk_{secrets.token_hex(6)}", secrets.token_bytes(KEY_BYTES))


def write_keys(path: Path, keys: list[MasterKey], *, exclusive: bool = False) -> None:
    """Replace the file atomically: after a crash it is either the old one or the new one."""
    lines = "".join(f"{key_id} {base64.b64encode(key).decode()}\n" for key_id, key in keys)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".master-key-")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        if exclusive:
            try:
                os.link(temporary, path)
            except FileExistsError:
                return  # another process was faster at the first start: its key is used
        else:
            os.replace(temporary, path)
            temporary = ""
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    finally:
        if temporary:
            os.unlink(temporary)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock for rotating the keys of this file; the kernel releases it when the process ends."""
    try:
        directory = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise MasterKeyRefused(f"cannot read the master key file {path}: {error}") from error
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise MasterKeyRefused(f"another rotation of {path} is running; wait until it has ended") from error
    finally:
        os.close(directory)


def _bound(id: str, tenant_id: str | None, purpose: str) -> bytes:
    return f"{id}|{tenant_id or ''}|{purpose}".encode()


def _encrypt(key: AESGCM, plain: bytes, bound: bytes) -> bytes:
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + key.encrypt(nonce, plain, bound)
