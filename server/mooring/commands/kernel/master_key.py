"""Rotating the master key: a new key in front, every data key wrapped anew, old keys dropped.

Each step leaves a state in which everything opens. A crash is healed by running it again: secrets that the new key
wraps already are left alone. The key that was in use until now stays in the file, wrapping nothing, until the next
rotation: a server may have sealed a secret with it a moment ago and commit it only now. Two rotations at once would
each overwrite the other's key, and what it wrapped would be lost: the second is refused.
"""

from pathlib import Path

from mooring.gateways.secrets import SecretBox, alone, new_key, read_keys, write_keys
from mooring.storage.kernel.secret import rewrap_batch

BATCH = 500


async def rotate_master_key(url: str, path: Path) -> int:
    """Make a new master key and wrap every secret with it; returns how many were wrapped."""
    with alone(path):
        previous = read_keys(path)
        write_keys(path, [new_key(), *previous])
        box = SecretBox(path)
        wrapped = 0
        while done := await rewrap_batch(url, box.current_key_id, box.rewrap, BATCH):
            wrapped += done
        write_keys(path, read_keys(path)[:2])
        return wrapped
