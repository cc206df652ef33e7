"""What a container's user can do to root, who writes into its volume."""

import contextlib
import os
import threading
from pathlib import Path
from typing import Any, cast

from mooring_agent.artifacts.blob_cache import BlobCache
from mooring_agent.containers.container_tasks import ContainerTasks
from mooring_agent.containers.volumes import ContainerVolumes
from mooring_agent.hosts.contract import Owner
from mooring_agent.tasks import arguments as task_arguments

TRIES = 2000
OWNER = Owner("alc_1", "member")
DIGEST = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  # of `hello`


def tasks_with(directory: Path) -> ContainerTasks:
    """Only the cache and the volumes are used."""
    cache = BlobCache(directory / "cache")
    place = cache.path(DIGEST)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"hello")
    absent = cast("Any", None)
    return ContainerTasks("nod_1", absent, absent, cache, absent, ContainerVolumes(directory / "volumes"), absent)


def test_root_changes_no_mode_through_a_link_in_a_volume(tmp_path: Path) -> None:
    tasks = tasks_with(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("of the machine")
    secret.chmod(0o600)
    volume = tmp_path / "volumes" / "alc_1" / "@member" / "data"
    volume.mkdir(parents=True)
    done = threading.Event()

    def replace_for_ever() -> None:
        """As the container's user, who owns the volume."""
        while not done.is_set():
            with contextlib.suppress(OSError):
                os.symlink(secret, volume / "other")
            with contextlib.suppress(OSError):
                os.rename(volume / "other", volume / ".weights.new")

    arguments = task_arguments.ArtifactFetch(
        kind="blob", digest=DIGEST, source="https://x.example/a", volume="data", file="weights"
    )
    attacker = threading.Thread(target=replace_for_ever, daemon=True)
    attacker.start()
    try:
        for _ in range(TRIES):
            with contextlib.suppress(Exception):  # to be refused is fine; to change the secret is not
                tasks._link_into_volume(OWNER, arguments)
            assert secret.stat().st_mode & 0o777 == 0o600
            assert secret.stat().st_nlink == 1
    finally:
        done.set()
        attacker.join()
