"""Samples of GPUs: against a recorded stand-in of NVIDIA's binding, and simulated ones. No real GPU was tried."""

from types import SimpleNamespace
from typing import Any

from mooring_agent.gpu_metrics import SAMPLES_MAX, GpuSampler, SampleBuffer, simulated_sample

GIB = 1 << 30


class RecordedNvmlStandIn:
    """Stands in for `pynvml`: answers in the form that its documentation records, without a driver or a GPU."""

    class NVMLError(Exception):
        pass

    nvmlEventTypeXidCriticalError = 8
    NVML_TEMPERATURE_GPU = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0

    def __init__(self, *, has_driver: bool = True) -> None:
        self.has_driver = has_driver
        self.inits = 0
        self.xids = [(1, 79)]
        self.lost: set[int] = set()

    def nvmlInit(self) -> None:
        if not self.has_driver:
            raise self.NVMLError("driver not loaded")
        self.inits += 1

    def nvmlShutdown(self) -> None:
        self.inits -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: str) -> None:
        assert (kinds, events) == (8, "events")

    def nvmlEventSetWait_v2(self, events: str, milliseconds: int) -> Any:
        if not self.xids:
            raise self.NVMLError("timeout")
        device, number = self.xids.pop(0)
        return SimpleNamespace(device=device, eventData=number)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if handle in self.lost:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(total=80 * GIB, used=(handle + 1) * GIB, free=0)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=70 + handle, memory=10)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 250_000

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 61

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        raise self.NVMLError("not supported")


def test_each_gpu_is_sampled_with_its_errors_once() -> None:
    nvml = RecordedNvmlStandIn()
    sampler = GpuSampler(4, lambda: 0.0, nvml)
    first, second = sampler.take()
    assert (first["utilisation_percent"], first["memory_used_bytes"], first["xid"]) == (70, GIB, None)
    assert (second["power_milliwatts"], second["temperature_celsius"], second["xid"]) == (250_000, 61, 79)
    assert (first["ecc_errors"], first["simulated"]) == (None, False), "what a model does not report is null"
    nvml.lost = {0}
    (left,) = sampler.take()
    assert (left["index"], left["xid"], nvml.inits) == (1, None, 1)
    sampler.close()
    assert nvml.inits == 0


def test_without_a_driver_declared_gpus_are_simulated_and_say_so() -> None:
    nvml = RecordedNvmlStandIn(has_driver=False)
    assert GpuSampler(0, lambda: 0.0, nvml).take() == []
    samples = GpuSampler(3, lambda: 300.0, nvml).take()
    assert [each["index"] for each in samples] == [0, 1, 2]
    assert all(each["simulated"] for each in samples)
    for moment in range(0, 1_200, 30):
        one = simulated_sample(5, moment)
        assert 0 <= one["utilisation_percent"] <= 100
        assert 0 < one["memory_used_bytes"] <= one["memory_total_bytes"]


def test_what_could_not_be_sent_waits_and_the_oldest_is_forgotten() -> None:
    clock = [100.0]
    buffer = SampleBuffer(lambda: clock[0])
    buffer.add([{"index": 0}])
    drained = buffer.drain()
    clock[0] = 130.0
    assert buffer.in_message(drained) == [{"index": 0, "age_seconds": 30.0}]
    buffer.add([{"index": 1}])
    buffer.restore(drained)
    assert [each.sample["index"] for each in buffer.drain()] == [0, 1]
    buffer.add([{"index": each} for each in range(SAMPLES_MAX + 5)])
    kept = buffer.drain()
    assert (len(kept), kept[0].sample["index"]) == (SAMPLES_MAX, 5)
