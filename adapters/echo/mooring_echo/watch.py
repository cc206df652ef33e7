"""Observes a running echo app: its health, members whose drain was taken back, and usage."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mooring_adapter import InstanceView, MemberObservation, Observation, RunTask, Usage
from mooring_echo.members import port_of
from mooring_echo.plans import alive

METERED: Final = timedelta(minutes=5)
UNIT: Final = "ready_members"


def watch(view: InstanceView) -> Observation:
    """Observe a running instance; the kit reports only what is new."""
    health, why = health_of(view)
    usage, meter = metered(view)
    detail: dict[str, Any] = {**view.instance.adapter_detail, **meter}
    back = [each for each in alive(view) if each.status == "ready" and each.adapter_detail.get("cordoned_by")]
    looks = {each.step: each for each in view.looks}
    asked: list[RunTask] = []
    seen: list[MemberObservation] = []
    for member in back:  # a drain was taken back: let the node accept work again
        step = f"wanted/{member.id}/{member.adapter_detail['cordoned_by']}"
        look = looks.get(step)
        if look is None:
            arguments = {"port": port_of(member), "path": "/wanted", "attempts": 5, "interval_seconds": 1}
            asked.append(RunTask(step=step, member_id=member.id, type="probe.http", arguments=arguments, audited=True))
        elif look.succeeded:
            rest = {name: value for name, value in member.adapter_detail.items() if name != "cordoned_by"}
            seen.append(MemberObservation(member_id=member.id, detail=rest))
    return Observation(
        members=tuple(seen), health=health, health_detail=why, detail=detail, usage=usage, looks=tuple(asked)
    )


def health_of(view: InstanceView) -> tuple[str, str]:
    """The health of the whole, and why."""
    members = alive(view)
    seeds = [each for each in members if each.component_key == "seed"]
    standing = [each for each in seeds if each.stands]
    if len(standing) <= len(seeds) // 2:
        return "degraded", f"{len(standing)} of {len(seeds)} seeds work, which is not a majority"
    if len(seeds) % 2 == 0:
        return "degraded", f"{len(seeds)} seeds; add or remove one to make the number odd"
    failed = [each.name for each in members if each.status in ("failed", "degraded")]
    if failed:
        return "degraded", f"failed or degraded: {', '.join(failed[:5])}"
    return "healthy", f"{len(members)} members"


def metered(view: InstanceView) -> tuple[tuple[Usage, ...], dict[str, Any]]:
    """The usage of the last full interval, if one has ended, and the new position of the meter.

    The unit counts the peak: the most members that were ready in the interval. The peak so far is kept in the records
    of the instance, so that every replica continues with it and reports the same record.
    """
    now = view.now or datetime.now(UTC)
    ready = sum(1 for each in view.members if each.stands)
    metered_until, peak = (view.instance.adapter_detail.get(name) for name in ("metered_until", "metered_members"))
    if not isinstance(metered_until, int) or not isinstance(peak, int):
        return (), {"metered_until": int(now.timestamp()), "metered_members": ready}
    begun = datetime.fromtimestamp(metered_until, UTC)
    ended = begun + METERED
    if now < ended:
        return (), {"metered_members": ready} if ready > peak else {}
    record = Usage(record_id=f"ready/{metered_until}", unit=UNIT, started_at=begun, ended_at=ended, quantity=peak)
    return (record,), {"metered_until": int(ended.timestamp()), "metered_members": ready}
