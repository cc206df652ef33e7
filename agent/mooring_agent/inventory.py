"""The machine's inventory: CPUs, memory, NUMA, GPUs and programs that apps may need.

GPUs come from NVIDIA's own library if its driver is loaded. Otherwise there are none, or as many *simulated* ones as
the operator declares: they can be scheduled and isolated, they compute nothing, and they are marked wherever they are
shown.
"""

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from mooring_agent import VERSION

PROGRAMS: Final = (
    "podman",
    "runc",
    "munged",
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "mariadbd",
    "python3",
    "ip",
    "cloud-init",
)
"""Programs whose presence is a fact that an app's manifest can require."""
OUTSIDE: Final = ("podman", "runc", "ip")
"""Those that the agent runs itself; the others are of use only where a sandbox sees them."""
VERSION_ARGUMENTS: Final = {"slurmctld": "-V", "slurmd": "-V", "slurmdbd": "-V", "ip": "-V"}
SIMULATED_MODEL: Final = "simulated"
SIMULATED_BYTES: Final = 80 * (1 << 30)
FACT_MAX: Final = 200
PRESENT: Final = "present"
"""The fact of a program that does not report its version."""
_NUMA_NODES: Final = Path("/sys/devices/system/node")


def collect_inventory(
    host: str,
    simulated_gpus: int = 0,
    facts: Mapping[str, str] | None = None,
    addresses: Sequence[str] = (),
    is_visible: Callable[[str], bool] = lambda path: True,
) -> dict[str, Any]:
    """Everything the platform is sent about this machine; `is_visible` says which files sandboxes see."""
    gpus, numa = real_gpus(), numa_nodes()
    return {
        "agent_version": VERSION,
        "host": host,
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "numa": numa,
        "gpus": gpus if gpus else declared_gpus(simulated_gpus, max(1, len(numa))),
        "facts": {
            "architecture": fact_text(platform.machine()),
            "kernel": fact_text(platform.release()),
            **machine_fact(),
            **({} if not gpus else gpu_ids(len(gpus))),
            **programs(is_visible=is_visible),
            **(facts or {}),
        },
        "addresses": list(addresses),
    }


def real_gpus() -> list[dict[str, Any]]:
    """The GPUs that NVIDIA's driver reports; none if there is no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu(index) for index in range(int(pynvml.nvmlDeviceGetCount()))]
    finally:
        pynvml.nvmlShutdown()


def gpu_ids(count: int) -> dict[str, str]:
    """The device behind each index: the platform notices when a GPU that is in use is replaced by another."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        ids = (pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count))
        texts = [each.decode() if isinstance(each, bytes) else str(each) for each in ids]
    except pynvml.NVMLError:
        return {}
    finally:
        pynvml.nvmlShutdown()
    return {f"gpu.{index}.id": fact_text(text) for index, text in enumerate(texts)}


def machine_fact(path: Path = Path("/etc/machine-id")) -> dict[str, str]:
    """A name for this machine that does not reveal its id; the platform notices when the state moves elsewhere."""
    try:
        machine_id = path.read_text().strip()
    except OSError:
        return {}
    if not machine_id:
        return {}
    return {"machine": hashlib.sha256(b"mooring-machine-v1\n" + machine_id.encode()).hexdigest()[:32]}


def declared_gpus(count: int, numa_count: int) -> list[dict[str, Any]]:
    """The declared number of simulated GPUs, spread over the NUMA nodes in blocks."""
    return [
        {
            "index": index,
            "numa": index * numa_count // count,
            "model": SIMULATED_MODEL,
            "memory_bytes": SIMULATED_BYTES,
            "simulated": True,
        }
        for index in range(count)
    ]


def numa_nodes() -> list[dict[str, Any]]:
    paths = sorted(_NUMA_NODES.glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    return [
        {
            "index": int(path.name[4:]),
            "cpus": count_cpus((path / "cpulist").read_text()),
            "memory_bytes": _memory_of(path / "meminfo"),
        }
        for path in paths
    ]


def count_cpus(listed: str) -> int:
    """The number of CPUs in a list such as `0-3,8`."""
    ranges = [part.partition("-") for part in listed.strip().split(",") if part]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def _memory_of(path: Path) -> int:
    for line in path.read_text().splitlines():
        if "MemTotal:" in line:
            return int(line.split()[-2]) * 1_024
    return 0


def programs(
    names: Sequence[str] = PROGRAMS, *, is_visible: Callable[[str], bool] = lambda path: True
) -> dict[str, str]:
    """Which of these programs are installed where they are used, with their versions."""
    directories = (*os.environ.get("PATH", "").split(os.pathsep), "/usr/local/sbin", "/usr/sbin", "/usr/bin", "/sbin")
    found = {}
    for name in names:
        places = (shutil.which(name, path=directory) for directory in directories if directory)
        if place := next((each for each in places if each and (name in OUTSIDE or is_visible(each))), None):
            found[name] = _version(name, place)
    return found


def _version(name: str, place: str) -> str:
    try:
        text = subprocess.run(
            [place, VERSION_ARGUMENTS.get(name, "--version")],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=10,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return PRESENT
    lines = (text.stdout or text.stderr).strip().splitlines()
    return fact_text(lines[0]) if lines and text.returncode == 0 else PRESENT


def fact_text(text: str) -> str:
    """A program's output in the form that the platform accepts: printable, one line, bounded."""
    words = "".join(
        letter if letter.isprintable() and letter != "\ufffd" else " " * letter.isspace() for letter in text
    )
    return " ".join(words.split())[:FACT_MAX].strip() or PRESENT


def numa_of(path: Path) -> int:
    """The NUMA node in a device's file; the kernel writes -1 if it is unknown, which counts as the first."""
    try:
        return max(0, int(path.read_text()))
    except (OSError, ValueError):
        return 0


def _gpu(index: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    bus = pynvml.nvmlDeviceGetPciInfo(handle).busId
    name = pynvml.nvmlDeviceGetName(handle)
    address = (bus.decode() if isinstance(bus, bytes) else str(bus)).lower()[-12:]
    numa = Path("/sys/bus/pci/devices") / address / "numa_node"
    return {
        "index": index,
        "numa": numa_of(numa),
        "model": name.decode() if isinstance(name, bytes) else str(name),
        "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        "simulated": False,
    }
