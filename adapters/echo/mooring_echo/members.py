"""The steps of one member: how it comes up, changes, becomes quiet and ends.

A member is one supervised process (`echo_node.py`), which is the version's artifact `script`. Steps have the id of the
member in their names, so that they are the same whoever plans them.
"""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from mooring_adapter import InstanceView, Member, OnFailure, Operation, ReportMember, RunTask, Step, Wait

SCRIPT: Final = "script"
SERVICE: Final = "echo"
FIRST_PORT: Final = 20_000
PORTS: Final = 12_000
WORKERS_KNOWN: Final = 50
QUIET_TRIES: Final = 8
QUIET_PAUSE: Final = timedelta(seconds=1)
STANDING: Final = frozenset({"ready", "degraded", "draining", "drained"})


def port_of(member: Member) -> int:
    """Where a member listens: by its id, since on a host without networks of their own members share the machine's."""
    number = 5_381
    for character in member.id:
        number = (number * 33 + ord(character)) % 4_294_967_296
    return FIRST_PORT + number % PORTS


def place_of(member: Member) -> str:
    """Its directory; two members may stand in one sandbox."""
    return f"/srv/echo/{member.id}"


def peers_of(member: Member, members: Sequence[Member]) -> str:
    """Whom a member has to know, for `peers.json`: the seeds; a gate also some workers."""
    known = [each for each in members if each.component_key == "seed"]
    if member.component_key == "gate":
        known += [each for each in members if each.component_key == "worker"][:WORKERS_KNOWN]
    listed = [
        {
            "name": each.name,
            "role": each.component_key,
            "address": (each.allocation.address if each.allocation else None) or "127.0.0.1",
            "port": port_of(each),
        }
        for each in known
    ]
    return json.dumps(listed, sort_keys=True)


def files(member: Member, members: Sequence[Member], step: str) -> RunTask:
    """Its script, and who the others are."""
    place = place_of(member)
    written: list[dict[str, Any]] = [
        {"path": f"{place}/echo_node.py", "mode": "0644", "artifact": SCRIPT},
        {"path": f"{place}/peers.json", "mode": "0644", "content": peers_of(member, members)},
        {"path": f"{place}/cordon", "mode": "0644", "content": "off\n"},
    ]
    return RunTask(step=step, member_id=member.id, type="files.write", arguments={"files": written}, attempts=3)


def start(member: Member, version: str, step: str) -> RunTask:
    """Its process, supervised."""
    port = port_of(member)
    arguments: dict[str, Any] = {
        "name": service_of(member),
        "argv": ["python3", "echo_node.py", "serve", "--role", member.component_key, "--port", str(port)],
        "environment": {"ECHO_VERSION": version},
        "directory": place_of(member),
        "restart": {"policy": "on_failure", "backoff_seconds": 1, "limit": 10},
    }
    if member.component_key == "gate":
        arguments["endpoint"] = {"name": "web", "port": port, "protocol": "http"}
    return RunTask(step=step, member_id=member.id, type="service.start", arguments=arguments, attempts=3)


def stop(member: Member, step: str) -> RunTask:
    """The end of its process; that there is none is no trouble."""
    arguments = {"name": service_of(member), "kill": "main", "grace_seconds": 5}
    return RunTask(step=step, member_id=member.id, type="service.stop", arguments=arguments, on_failure=OnFailure.GO_ON)


def service_of(member: Member) -> str:
    """The name of its process; members of one sandbox have names of their own."""
    return f"{SERVICE}-{member.component_key}-{member.ordinal}"


def is_ready(member: Member, step: str) -> RunTask:
    """It answers."""
    arguments = {"port": port_of(member), "path": "/ready", "attempts": 40, "interval_seconds": 0.25}
    return RunTask(step=step, member_id=member.id, type="probe.http", arguments=arguments, attempts=2)


def bring_up(view: InstanceView, member: Member, members: Sequence[Member]) -> list[Step]:
    """From nothing to ready."""
    key = member.id
    steps: list[Step] = [
        ReportMember(step=f"join/{key}", member_id=key, status="joining"),
        files(member, members, f"files/{key}"),
        start(member, view.instance.pin.version, f"start/{key}"),
        is_ready(member, f"probe/{key}"),
        ReportMember(
            step=f"ready/{key}",
            member_id=key,
            status="ready",
            health="healthy",
            detail={"port": port_of(member), "role": member.component_key},
        ),
    ]
    return steps


def tell_peers(member: Member, members: Sequence[Member]) -> RunTask:
    """The others have changed."""
    written = [{"path": f"{place_of(member)}/peers.json", "mode": "0644", "content": peers_of(member, members)}]
    return RunTask(
        step=f"peers/{member.id}",
        member_id=member.id,
        type="files.write",
        arguments={"files": written},
        on_failure=OnFailure.GO_ON,
    )


def cordon(member: Member) -> RunTask:
    """Let it take no new work."""
    written = [{"path": f"{place_of(member)}/cordon", "mode": "0644", "content": "on\n"}]
    return RunTask(
        step=f"cordon/{member.id}", member_id=member.id, type="files.write", arguments={"files": written}, attempts=3
    )


class MemberDrain:
    """How far a member is on its way to being quiet, by the probes that were made for this operation."""

    def __init__(self, view: InstanceView, operation: Operation, member: Member) -> None:
        self.member = member
        self.probes = view.series(operation, f"quiet/{member.id}")
        self.is_quiet = bool(self.probes) and self.probes[-1].succeeded
        now, until = view.now, view.quiet_until(operation)
        self.is_late = now is not None and until is not None and now + 2 * QUIET_PAUSE >= until

    @property
    def is_given_up(self) -> bool:
        """There is no time for another look, and the last one did not find it quiet."""
        return self.is_late and bool(self.probes) and self.probes[-1].failed

    def steps(self) -> list[Step]:
        """Ask for no new work, then look, pause, and look again; the last look is in the plan."""
        found: list[Step] = [cordon(self.member)]
        number = max(len(self.probes), 1)
        if self.probes and self.probes[-1].failed and not self.is_late:
            number += 1
            ended_at = self.probes[-1].finished_at
            if ended_at is not None:
                found.append(
                    Wait(step=f"pause/{self.member.id}", until=ended_at + QUIET_PAUSE, member_id=self.member.id)
                )
        arguments = {
            "port": port_of(self.member),
            "path": "/quiet",
            "attempts": QUIET_TRIES,
            "interval_seconds": 0.25,
        }
        found.append(
            RunTask(
                step=f"quiet/{self.member.id}/{number}",
                member_id=self.member.id,
                type="probe.http",
                arguments=arguments,
                on_failure=OnFailure.GO_ON,
            )
        )
        return found
