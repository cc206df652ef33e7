"""Reads usage from Prometheus counters of members, as the manifest's `metering` says; no code of an app is needed.

Every `METER_SECONDS` a look reads the samples of the named metrics on each member. The sum of the samples that match is
one reading of a series: one counter of one member. Its epoch is the start of the process, which
`process_start_time_seconds` tells; each epoch begins with a reading of 0. So nothing is counted twice after a restart
of the app, of the adapter or of a look, and what was counted before the first look is not lost. Without that metric
nothing is read: nobody could tell a restart from a fall.
"""

import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mooring_adapter.instance_view import InstanceView, Member, Task
from mooring_adapter.steps import OnFailure, Reading, RunTask

METER_SECONDS: Final = 60.0
STARTED: Final = "process_start_time_seconds"
STEP: Final = "meter/"
_SAMPLE: Final = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[^\s]+)(?:\s+-?\d+)?"
)
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPES: Final = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

log = logging.getLogger("mooring.adapter.metering")
CLOCK_SKEW_SECONDS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the text format."""

    name: str
    labels: Mapping[str, str]
    value: float


def is_meter_look(task: Task) -> bool:
    """Whether a task reads counters, and says nothing about health."""
    return not task.operation_id and task.step.startswith(STEP)


def due_looks(view: InstanceView, member: Member, ports: Mapping[str, int]) -> Iterator[RunTask]:
    """The looks at a member's counters that are due; one at a time for each path."""
    if view.now is None:
        return
    period = int(view.now.timestamp() // METER_SECONDS)
    looks = [each for each in view.tasks if is_meter_look(each) and each.member_id == member.id]
    for index, source in enumerate(view.manifest.get("metering", ())):
        begins = f"{STEP}{member.id}/{index}/"
        own = [each for each in looks if each.step.startswith(begins)]
        step = f"{begins}{period}"
        if source["port"] not in ports or any(not each.is_over or each.step == step for each in own):
            continue
        metrics = sorted({STARTED, *(each["metric"] for each in source["counters"])})
        asked = {"port": ports[source["port"]], "path": source.get("path", "/metrics"), "metrics": metrics}
        yield RunTask(step=step, member_id=member.id, type="probe.http", arguments=asked, on_failure=OnFailure.GO_ON)


def readings_of(view: InstanceView, member: Member) -> Iterator[Reading]:
    """The readings by the newest look at each path of a member."""
    for index, source in enumerate(view.manifest.get("metering", ())):
        begins = f"{STEP}{member.id}/{index}/"
        done = [
            each
            for each in view.tasks
            if is_meter_look(each) and each.step.startswith(begins) and each.succeeded and each.created_at is not None
        ]
        if done:
            newest = max(done, key=lambda each: (each.created_at, each.step))
            yield from _readings(member, source, newest, index)


def _readings(member: Member, source: Mapping[str, Any], look: Task, index: int) -> Iterator[Reading]:
    samples = list(samples_of((look.result or {}).get("samples", ())))
    started = [each.value for each in samples if each.name == STARTED]
    if not started or look.created_at is None:
        log.warning("a member does not export %s; its counters are not read", STARTED, extra={"member_id": member.id})
        return
    if not 0 < min(started) <= look.created_at.timestamp() + CLOCK_SKEW_SECONDS_MAX:
        log.warning(
            "the %s of a member is impossible; its counters are not read", STARTED, extra={"member_id": member.id}
        )
        return
    epoch, seq = round(min(started) * 1_000), round(look.created_at.timestamp() * 1_000)
    for number, counter in enumerate(source["counters"]):
        wanted = counter.get("labels", {}).items()
        matching = [each.value for each in samples if each.name == counter["metric"] and wanted <= each.labels.items()]
        if not matching:
            continue  # many programs export a counter only after its first use
        series = f"{member.id}/{counter['unit']}/{index}.{number}"
        begin = Reading(
            series=series,
            epoch=epoch,
            seq=0,
            value=0.0,
            at=look.created_at,
            unit=counter["unit"],
            member_id=member.id,
            component=member.component_key,
        )
        yield begin
        yield replace(begin, seq=seq, value=math.fsum(matching))


def samples_of(lines: Iterable[str]) -> Iterator[Sample]:
    """The samples in lines of Prometheus' text format; what is not a number counts nothing."""
    for line in lines:
        found = _SAMPLE.fullmatch(line.strip())
        if found is None:
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        if math.isfinite(value) and value >= 0:
            labels = {name: _unescaped(text) for name, text in _LABEL.findall(found["labels"] or "")}
            yield Sample(found["name"], labels, value)


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), text)
