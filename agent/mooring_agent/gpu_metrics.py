"""Samples of the GPUs: utilisation, memory, power, temperature and errors.

They come from NVIDIA's own library where its driver is loaded. Simulated GPUs get values that look plausible and mean
nothing; the platform marks them. A machine without either has no samples. What cannot be sent waits in a buffer that
forgets the oldest.
"""

import asyncio
import logging
import math
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pynvml  # type: ignore[import-untyped]

from mooring_agent.inventory import SIMULATED_BYTES

SAMPLES_MAX: Final = 512
"""How many samples wait, and how many one poll takes."""
XIDS_MAX: Final = 64
"""How many errors are read at once; a GPU that reports more is broken anyway."""
SIMULATED_PERIOD_SECONDS: Final = 600.0

Sample = dict[str, Any]
log = logging.getLogger("mooring.agent")


class GpuSampler:
    """Reads the machine's GPUs. The session with the driver stays open, because errors are events of a session.

    Without `nvml` no driver is looked for, and all GPUs are simulated.
    """

    def __init__(self, simulated_gpus: int, now: Callable[[], float], nvml: Any = pynvml) -> None:
        self._simulated = simulated_gpus
        self._now = now
        self._nvml = nvml
        self._handles: list[Any] | None = None
        self._events: Any = None
        self._xids: dict[int, int] = {}

    def take(self) -> list[Sample]:
        """One sample of each GPU. A GPU that does not answer is left out."""
        if not self._open():
            return [simulated_sample(index, self._now()) for index in range(self._simulated)]
        self._read_xids()
        samples = []
        for index, handle in enumerate(self._handles or ()):
            try:
                samples.append(self._sample(index, handle))
            except self._nvml.NVMLError as error:
                log.warning("cannot read GPU %d: %s; trying again with the next sample", index, error)
        return samples

    def close(self) -> None:
        if self._handles is not None:
            self._handles = None
            self._nvml.nvmlShutdown()

    def _open(self) -> bool:
        if self._handles is not None:
            return True
        if self._nvml is None:
            return False
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError:
            return False
        self._handles = [
            self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(int(self._nvml.nvmlDeviceGetCount()))
        ]
        self._events = self._register()
        return True

    def _register(self) -> Any:
        """The events of critical errors; None where the driver does not offer them."""
        try:
            events = self._nvml.nvmlEventSetCreate()
            for handle in self._handles or ():
                self._nvml.nvmlDeviceRegisterEvents(handle, self._nvml.nvmlEventTypeXidCriticalError, events)
        except self._nvml.NVMLError as error:
            log.info("this driver does not report XID errors: %s; going on without them", error)
            return None
        return events

    def _read_xids(self) -> None:
        if self._events is None:
            return
        for _ in range(XIDS_MAX):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:  # a time-out: there are no more
                return
            index = int(self._nvml.nvmlDeviceGetIndex(event.device))
            self._xids[index] = int(event.eventData)
            log.warning("GPU %d reported the error XID %d", index, int(event.eventData))

    def _sample(self, index: int, handle: Any) -> Sample:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return {
            "index": index,
            "memory_used_bytes": int(memory.used),
            "memory_total_bytes": int(memory.total),
            "utilisation_percent": self._optional(lambda: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            "power_milliwatts": self._optional(lambda: int(nvml.nvmlDeviceGetPowerUsage(handle))),
            "temperature_celsius": self._optional(
                lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            ),
            "ecc_errors": self._optional(
                lambda: int(
                    nvml.nvmlDeviceGetTotalEccErrors(
                        handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                    )
                )
            ),
            "xid": self._xids.pop(index, None),
            "simulated": False,
        }

    def _optional(self, read: Callable[[], int]) -> int | None:
        """A value that not every model reports."""
        try:
            return read()
        except self._nvml.NVMLError:
            return None


@dataclass(frozen=True, slots=True)
class WaitingSample:
    """A sample, and when it was taken."""

    taken_at: float
    sample: Sample


class SampleBuffer:
    """Samples that wait to be sent with the next poll."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._waiting: deque[WaitingSample] = deque(maxlen=SAMPLES_MAX)

    def add(self, samples: list[Sample]) -> None:
        self._waiting.extend(WaitingSample(self._now(), each) for each in samples)

    def drain(self) -> list[WaitingSample]:
        """What waits; the caller puts it back with `restore` if it could not be sent."""
        drained = list(self._waiting)
        self._waiting.clear()
        return drained

    def restore(self, drained: list[WaitingSample]) -> None:
        """What was drained and not sent, ahead of what came since; the oldest are forgotten."""
        later = list(self._waiting)
        self._waiting.clear()
        self._waiting.extend([*drained, *later])

    def in_message(self, drained: list[WaitingSample]) -> list[Sample]:
        """As the platform takes them: with their age, because its clock is the one that counts."""
        now = self._now()
        return [{**each.sample, "age_seconds": round(max(0.0, now - each.taken_at), 1)} for each in drained]


async def sample_forever(sampler: GpuSampler, buffer: SampleBuffer, seconds: Callable[[], float]) -> None:
    """Sample as often as the platform asks; not at all while it asks for nothing."""
    while True:
        pause = seconds()
        if pause > 0:
            buffer.add(await asyncio.to_thread(sampler.take))
        await asyncio.sleep(pause if pause > 0 else 5.0)


def simulated_sample(index: int, now: float) -> Sample:
    """Values that rise and fall like those of a GPU with work; they measure nothing."""
    phase = zlib.crc32(f"gpu-{index}".encode()) % 1_000 / 1_000
    wave = 0.5 + 0.5 * math.sin(2 * math.pi * (now / SIMULATED_PERIOD_SECONDS + phase))
    busy = 0.0 if wave < 0.15 else wave
    return {
        "index": index,
        "memory_used_bytes": int(SIMULATED_BYTES * (0.1 + 0.7 * wave)),
        "memory_total_bytes": SIMULATED_BYTES,
        "utilisation_percent": round(100 * busy),
        "power_milliwatts": round(60_000 + 340_000 * busy),
        "temperature_celsius": round(32 + 40 * busy),
        "ecc_errors": 0,
        "xid": None,
        "simulated": True,
    }
