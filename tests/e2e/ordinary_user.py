"""Programs as an ordinary user: no capabilities, no groups, and an interpreter that the user can read.

The interpreter of the tests may be below a home directory that nobody else can enter. A private mount namespace then
shows the interpreter alone at its place, and nothing else of that directory.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ENTER_OTHERS: Final = 0o001
SHOWN: Final = """
set -e
closed=$1 python=$2 account=$3; shift 3
if [ -n "$closed" ]; then
    mount --bind "$python" /mnt
    mount -t tmpfs -o mode=755 none "$closed"
    mkdir -p "$python"
    mount --bind /mnt "$python"
    umount /mnt
fi
exec setpriv --reuid "$account" --regid nogroup --clear-groups --bounding-set=-all --inh-caps=-all -- "$@"
"""


def as_user(account: str, command: Sequence[str]) -> list[str]:
    """The command, run by this account; the process id and its signals are those of the command itself."""
    python = Path(sys.base_prefix).resolve()
    closed = [each for each in reversed(python.parents) if not each.stat().st_mode & ENTER_OTHERS]
    first = str(closed[0]) if closed else ""
    return ["unshare", "--mount", "sh", "-c", SHOWN, "sh", first, str(python), account, *command]
