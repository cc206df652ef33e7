"""GPUs that a sandbox returns, with simulated answers in the form of `nvidia-smi`: this was never run on a real GPU."""

from collections.abc import Sequence
from pathlib import Path

from mooring_agent.hosts.contract import Device, DeviceReturn
from mooring_agent.hosts.gpu_reset import ToolResult, find_device_holders, return_devices
from tests.support.rows import every_row

RESET = ToolResult(0, "GPU 00000000:3B:00.0 was successfully reset.\nAll done.\n")
IN_USE = ToolResult(255, "GPU 00000000:3B:00.0 is currently in use by another process.\n\n1 device is in use.\n")
NOT_SUPPORTED = ToolResult(3, "Resetting GPU 00000000:00:1E.0 is not supported.\n")
ODD = ToolResult(1, "\n\x1b[31mbad\x00 text\n")


@every_row(
    ("device", "answer", "holders", "expected"),
    [
        (Device(0, simulated=True), ODD, [7], DeviceReturn("nvidia0", "simulated")),
        (Device(3, simulated=False), RESET, [], DeviceReturn("nvidia3", "reset")),
        (
            Device(3, simulated=False),
            RESET,
            [7, 8],
            DeviceReturn("nvidia3", "unverified", "in use by process 7, 8", (7, 8)),
        ),
        (
            Device(0, simulated=False),
            IN_USE,
            [],
            DeviceReturn("nvidia0", "unverified", "GPU 00000000:3B:00.0 is currently in use by another process."),
        ),
        (
            Device(0, simulated=False),
            NOT_SUPPORTED,
            [],
            DeviceReturn("nvidia0", "unverified", "Resetting GPU 00000000:00:1E.0 is not supported."),
        ),
        (Device(0, simulated=False), ODD, [], DeviceReturn("nvidia0", "unverified", " [31mbad  text")),
        (
            Device(0, simulated=False),
            ToolResult(9, ""),
            [],
            DeviceReturn("nvidia0", "unverified", "nvidia-smi ended with 9"),
        ),
    ],
)
def test_what_is_known_of_a_returned_gpu(
    device: Device, answer: ToolResult, holders: list[int], expected: DeviceReturn
) -> None:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> ToolResult:
        commands.append(command)
        return answer

    assert return_devices([device], run=run, holders_of=lambda path: holders) == (expected,)
    is_reset = not device.simulated and not holders
    assert commands == ([("nvidia-smi", "--gpu-reset", f"--id={device.index}")] if is_reset else [])


def test_a_process_that_has_a_device_open_is_found(tmp_path: Path) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    assert find_device_holders(str(device)) == []
    with device.open():
        assert len(find_device_holders(str(device))) == 1


def test_a_machine_without_the_tool_says_so() -> None:
    (returned,) = return_devices([Device(0, simulated=False)], holders_of=lambda path: [])
    assert (returned.state, returned.detail) == ("unverified", "nvidia-smi is not installed on this machine")
