"""The sandbox's root directory: built on disk, owned by its uid range, removed as a whole.

It contains only the part of the machine's /etc that programs in /usr need, copied or mounted read-only. Its accounts
are the system's (below 1000) and one ordinary user, `app`. Nothing of the machine's /home, /root, /var, /opt or /srv is
in it.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from mooring_agent.hosts.contract import Peer, SandboxSpec

APP_USER: Final = "app"
APP_UID: Final = 1000
_SYSTEM_UIDS_END: Final = 1000
_NOBODY: Final = 65534
_TOP_LINKS: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_DIRECTORIES: Final[dict[str, int]] = {
    "dev": 0o755,
    "etc": 0o755,
    "etc/ssl": 0o755,
    "home": 0o755,
    "mnt": 0o755,
    "opt": 0o755,
    "proc": 0o555,
    "root": 0o700,
    "run": 0o755,
    "srv": 0o755,
    "sys": 0o555,
    "tmp": 0o1777,
    "usr": 0o755,
    "var": 0o755,
    "var/cache": 0o755,
    "var/lib": 0o755,
    "var/log": 0o755,
    "var/spool": 0o755,
    "var/tmp": 0o1777,
}
_COPIED: Final = (
    "debian_version",
    "host.conf",
    "gai.conf",
    "ld.so.cache",
    "ld.so.conf",
    "localtime",
    "login.defs",
    "mime.types",
    "nsswitch.conf",
    "protocols",
    "services",
    "shells",
    "ssl/openssl.cnf",
)
_SHOWN: Final = ("alternatives", "ld.so.conf.d", "ssl/certs")
_BLOCK_BEGIN: Final = "# names of this project: begin"
_BLOCK_END: Final = "# names of this project: end"
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_ADDRESS: Final = re.compile(r"[0-9a-fA-F.:]{2,45}")


def binds() -> list[tuple[str, str]]:
    """What is mounted read-only from the machine besides its /usr, as (source, target)."""
    shown = [
        (f"/{name}", f"/{name}") for name in _TOP_LINKS if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")
    ]
    shown += [(f"/etc/{name}", f"/etc/{name}") for name in _SHOWN if os.path.isdir(f"/etc/{name}")]
    return shown


def build(root: Path, spec: SandboxSpec, first_uid: int | None) -> None:
    """Remove what a crash left of the root, and build it from scratch."""
    remove(root)
    root.mkdir(mode=0o755)
    for name, mode in _DIRECTORIES.items():
        (root / name).mkdir()
        (root / name).chmod(mode)
    for name in _TOP_LINKS:
        if os.path.islink(f"/{name}"):
            (root / name).symlink_to(os.readlink(f"/{name}"))
        elif os.path.isdir(f"/{name}"):
            (root / name).mkdir()
    (root / "var/run").symlink_to("/run")
    (root / "var/lock").symlink_to("/run/lock")
    for name in _SHOWN:
        if os.path.isdir(f"/etc/{name}"):
            (root / "etc" / name).mkdir()
    for name in _COPIED:
        with contextlib.suppress(FileNotFoundError):
            (root / "etc" / name).write_bytes(Path("/etc", name).read_bytes())
    (root / "etc/os-release").symlink_to("../usr/lib/os-release")
    (root / "etc/mtab").symlink_to("../proc/self/mounts")
    for name, text in _etc_files(spec).items():
        (root / "etc" / name).write_text(text)
    (root / "etc/shadow").chmod(0o640)
    (root / "home" / APP_USER).mkdir(mode=0o755)
    chown_tree(root, first_uid or 0)
    home = (first_uid or 0) + APP_UID
    os.chown(root / "home" / APP_USER, home, home)


def chown_tree(root: Path, uid: int) -> None:
    """Give everything below to the sandbox's root user."""
    os.lchown(root, uid, uid)
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            os.lchown(os.path.join(directory, name), uid, uid)


def _etc_files(spec: SandboxSpec) -> dict[str, str]:
    accounts, groups = _system_accounts("/etc/passwd", 2), _system_accounts("/etc/group", 2)
    passwd = ["root:x:0:0:root:/root:/bin/bash", *(":".join(each) for each in accounts)]
    passwd.append(f"{APP_USER}:x:{APP_UID}:{APP_UID}::/home/{APP_USER}:/bin/bash")
    names = [each.partition(":")[0] for each in passwd]
    group = ["root:x:0:", *(":".join((*each[:3], "")) for each in groups), f"{APP_USER}:x:{APP_UID}:"]
    return {
        "passwd": "".join(f"{line}\n" for line in passwd),
        "group": "".join(f"{line}\n" for line in group),
        "shadow": "".join(f"{name}:*:19000:0:99999:7:::\n" for name in names),
        "hostname": f"{spec.hostname}\n",
        "hosts": hosts_file("", spec, spec.peers),
        # No name server is reachable from a project network; an empty file makes look-ups fail at once.
        "resolv.conf": "",
        "profile": "export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n",
        "fstab": "",
        "machine-id": "",
    }


def _system_accounts(path: str, number: int) -> list[list[str]]:
    """The machine's accounts below 1000 except root, and nobody: packages in /usr expect theirs."""
    found = []
    for line in Path(path).read_text(errors="replace").splitlines():
        fields = line.split(":")
        if len(fields) > number and fields[number].isdigit():
            uid = int(fields[number])
            if 0 < uid < _SYSTEM_UIDS_END or uid == _NOBODY:
                found.append(fields)
    return found


def hosts_file(current: str, spec: SandboxSpec, peers: Sequence[Peer]) -> str:
    """The text of /etc/hosts: lines that somebody in the sandbox added stay, the block of project names is ours."""
    kept: list[str] = []
    inside = False
    for line in current.splitlines():
        if line == _BLOCK_BEGIN:
            inside = True
        elif line == _BLOCK_END:
            inside = False
        elif not inside:
            kept.append(line)
    if not current:
        kept = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    names = {spec.hostname: spec.network.address or "127.0.1.1"}
    names.update({peer.name: peer.address for peer in peers})
    block = [
        f"{address}\t{name}" for name, address in names.items() if _NAME.fullmatch(name) and _ADDRESS.fullmatch(address)
    ]
    return "".join(f"{line}\n" for line in (*kept, _BLOCK_BEGIN, *block, _BLOCK_END))


def remove(root: Path) -> int:
    """Remove a directory that a tenant filled, however deep; returns how many entries were removed.

    A directory that is not empty is moved to the top before it is emptied, so neither paths nor the number of open
    directories grow with what a tenant made, and no link is followed.
    """
    try:
        top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    except NotADirectoryError:
        root.unlink()
        return 1
    removed = 0
    try:
        while entries := os.listdir(top):
            for name in entries:
                removed += _empty(top, name, removed)
    finally:
        os.close(top)
    root.rmdir()
    return removed + 1


def _empty(top: int, name: str, moved: int) -> int:
    """Remove one entry of the top directory; non-empty directories inside are moved up beside it."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
        os.unlink(name, dir_fd=top)
        return 1
    removed = 1
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        for each in os.listdir(directory):
            if not stat.S_ISDIR(os.lstat(each, dir_fd=directory).st_mode):
                os.unlink(each, dir_fd=directory)
                removed += 1
                continue
            try:
                os.rmdir(each, dir_fd=directory)
                removed += 1
            except OSError:
                moved += 1
                os.rename(each, _free_name(top, moved), src_dir_fd=directory, dst_dir_fd=top)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=top)
    return removed


def _free_name(top: int, number: int) -> str:
    while True:
        name = f".removed-{number}"
        try:
            os.lstat(name, dir_fd=top)
        except FileNotFoundError:
            return name
        number += 1


def find_owned_below(directories: Iterable[str], first_uid: int, count: int, depth: int = 3) -> tuple[list[str], int]:
    """Entries near the top of these directories that belong to a uid range, and how many were examined."""
    found, looked = [], 0
    pending = [(directory, 0) for directory in directories]
    while pending:
        directory, level = pending.pop()
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                looked += 1
                with contextlib.suppress(OSError):
                    if first_uid <= entry.stat(follow_symlinks=False).st_uid < first_uid + count:
                        found.append(entry.path)
                    if level + 1 < depth and entry.is_dir(follow_symlinks=False):
                        pending.append((entry.path, level + 1))
    return found, looked
