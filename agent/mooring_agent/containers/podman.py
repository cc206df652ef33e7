"""Calling podman: a store of the agent's own, no network, no shell.

Images come from the agent's cache, whose bytes were hashed. podman's policy accepts nothing but a local OCI layout, so
it cannot pull from anywhere. The last line of its error output becomes the failure's detail.
"""

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mooring_agent.atomic_files import write_private
from mooring_agent.hosts.contract import HostFailure

CONFIG: Final = """
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=8192:8192"]
log_driver = "k8s-file"
log_size_max = 8388608
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "file"
[network]
network_backend = "{backend}"
network_config_dir = "{networks}"
"""
HELPERS: Final = tuple(
    Path(each)
    for each in ("/usr/local/libexec/podman", "/usr/local/lib/podman", "/usr/libexec/podman", "/usr/lib/podman")
)
"""Where podman looks for its helper programs."""
POLICY: Final = {
    "default": [{"type": "reject"}],
    "transports": {"oci": {"": [{"type": "insecureAcceptAnything"}]}},
}
RUN: Final = Path("/run/mooring-agent")
SECONDS: Final = 120.0
OUTPUT_MAX: Final = 8 * 1_048_576


def network_backend(helpers: Sequence[Path] = HELPERS) -> str:
    """The backend podman should name. No container uses it, but podman fails where the configured one is missing."""
    return "netavark" if any((each / "netavark").exists() for each in helpers) else "cni"


class Podman:
    """podman with a store below the agent's state directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.policy = directory / "policy.json"
        # podman needs a short path here, and its contents should not outlive the machine's boot.
        self.run = RUN / hashlib.sha256(str(directory).encode()).hexdigest()[:12]
        self.layouts = directory / "layouts"
        self.secrets = self.run / "secrets"
        self.temporary = directory / "temporary"
        self._config = directory / "containers.conf"

    @staticmethod
    def on_this_machine() -> bool:
        """Whether this machine can run containers at all."""
        return os.geteuid() == 0 and all(shutil.which(each) for each in ("podman", "runc", "conmon"))

    def prepare(self) -> None:
        """Create the directories and configuration files that podman is pointed at."""
        for place in (self.directory / "storage", self.layouts, self.run, self.secrets, self.temporary):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = CONFIG.format(backend=network_backend(), networks=self.directory / "networks")
        write_private(self._config, config.encode())
        write_private(self.policy, json.dumps(POLICY).encode())

    async def call(self, *words: str, code: str = "host_error", stdin: bytes | None = None) -> str:
        """Run podman; returns its output, or raises a failure with this code."""
        status, output, errors = await self.try_call(*words, stdin=stdin)
        if status != 0:
            raise HostFailure(code, f"podman {words[0]}: {_last(errors) or f'ended with {status}'}")
        return output

    async def try_call(self, *words: str, stdin: bytes | None = None) -> tuple[int, str, str]:
        """Run podman; returns its exit code, output and errors."""
        if not (self._config.exists() and self.secrets.exists() and self.temporary.exists()):
            self.prepare()
        process = await asyncio.create_subprocess_exec(
            "podman",
            "--root",
            str(self.directory / "storage"),
            "--runroot",
            str(self.run),
            *words,
            cwd=self.layouts,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
                "HOME": str(self.directory),
                "CONTAINERS_CONF": str(self._config),
                "TMPDIR": str(self.temporary),  # on the watched disk, and cleared when podman was killed
            },
        )
        try:
            async with asyncio.timeout(SECONDS):
                output, errors = await process.communicate(stdin)
        except TimeoutError as error:
            process.kill()
            await process.wait()
            raise HostFailure("timed_out", f"podman {words[0]} took more than {SECONDS:.0f} s") from error
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        return process.returncode or 0, output[:OUTPUT_MAX].decode(errors="replace"), errors.decode(errors="replace")

    async def containers(self, labels: Mapping[str, str]) -> Sequence[dict[str, Any]]:
        filters = [word for name, value in labels.items() for word in ("--filter", f"label={name}={value}")]
        listed = json.loads(await self.call("ps", "--all", "--format", "json", *filters) or "[]")
        return list(listed or [])


def _last(errors: str) -> str:
    lines = [line for line in errors.strip().splitlines() if "level=warning" not in line]
    return lines[-1][:500] if lines else ""
