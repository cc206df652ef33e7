"""Rotation of the master key: add a new key, rewrap every data key with it, drop old keys.

After each step every secret can still be unsealed. After a crash, run the rotation again: it skips the secrets that
the new key already wraps. The previous key stays in the file until the next rotation although it wraps nothing: a
server may have sealed a secret with it a moment ago and commit that secret only now. Two rotations at once would
overwrite each other's key and lose the secrets under it, so the second one is refused.
"""

from pathlib import Path

from mooring.gateways.secrets import KeySource, SecretBox, alone, new_key, read_keys, write_keys
from mooring.storage.kernel.secret import rewrap_batch

BATCH = 500


async def rotate_master_key(url: str, path: Path) -> int:
    """Make a new master key and rewrap every secret with it; returns the number of rewrapped secrets."""
    with alone(path):
        previous = read_keys(path)
        write_keys(path, [new_key(), *previous])
        box = SecretBox(path)
        wrapped = 0
        while done := await rewrap_batch(url, box.current_key_id, box.rewrap, BATCH):
            wrapped += done
        write_keys(path, read_keys(path)[:2])
        return wrapped


async def rewrap_secrets(url: str, source: KeySource) -> int:
    """Rewrap every secret with the current key of an external key source, to which the operator added that key."""
    box, wrapped = SecretBox(source), 0
    while done := await rewrap_batch(url, box.current_key_id, box.rewrap, BATCH):
        wrapped += done
    return wrapped
