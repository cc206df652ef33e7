"""Returning GPUs: no process of the tenant's uses one any more, and the driver has reset it, before its slot is free.

A reset clears the memory that the tenant's programs left on the device. Not every GPU can be reset, and a machine may
lack the tool: then the receipt says `unverified` and why. A simulated GPU has no memory, and says `simulated`.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mooring_agent.hosts.contract import Device, DeviceReturn
from mooring_agent.kernel import proc

RESET_SECONDS: Final = 120.0
DETAIL_MAX: Final = 200
_TOOL: Final = "nvidia-smi"
_NOT_PRINTABLE: Final = re.compile(r"[^ -~]+")


@dataclass(frozen=True, slots=True)
class ToolResult:
    exit_code: int
    output: str


RunTool = Callable[[Sequence[str]], ToolResult]
FindHolders = Callable[[str], list[int]]


def return_devices(
    devices: Sequence[Device], *, run: RunTool | None = None, holders_of: FindHolders | None = None
) -> tuple[DeviceReturn, ...]:
    """Reset each GPU that nothing uses any more; returns what is known of each of them."""
    run_tool, find_holders = run or _run, holders_of or find_device_holders
    return tuple(_return_one(device, run_tool, find_holders) for device in devices)


def _return_one(device: Device, run: RunTool, holders_of: FindHolders) -> DeviceReturn:
    name = f"nvidia{device.index}"
    if device.simulated:
        return DeviceReturn(name, "simulated")
    if holders := holders_of(f"/dev/{name}"):
        listed = ", ".join(str(pid) for pid in holders[:10])
        return DeviceReturn(name, "unverified", f"in use by process {listed}", tuple(holders))
    done = run((_TOOL, "--gpu-reset", f"--id={device.index}"))
    if done.exit_code == 0:
        return DeviceReturn(name, "reset")
    lines = [line.strip() for line in done.output.splitlines() if line.strip()]
    said = _NOT_PRINTABLE.sub(" ", lines[0] if lines else f"{_TOOL} ended with {done.exit_code}")
    return DeviceReturn(name, "unverified", said[:DETAIL_MAX])


def find_device_holders(path: str) -> list[int]:
    """The processes that have a device file open."""
    return [pid for pid in proc.pids() if any(target == path for _, target in proc.descriptors(pid))]


def _run(command: Sequence[str]) -> ToolResult:
    if shutil.which(command[0]) is None:
        return ToolResult(127, f"{command[0]} is not installed on this machine")
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=RESET_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return ToolResult(124, f"{command[0]} did not end within {RESET_SECONDS:.0f} seconds")
    return ToolResult(done.returncode, done.stdout + done.stderr)
