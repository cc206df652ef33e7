"""The steps of one member: how it starts, changes, becomes quiet and stops.

A member is one supervised process (`echo_node.py`), which is the version's artifact `script`. Step names contain the id
of the member, so that every replica plans the same steps.
"""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from mooring_adapter import InstanceView, Member, OnFailure, Operation, ReportMember, RunTask, Step, Wait

SCRIPT: Final = "script"
SERVICE: Final = "echo"
GREETING: Final = "echo"
FIRST_PORT: Final = 20_000
PORTS: Final = 12_000
WORKERS_KNOWN: Final = 50
QUIET_TRIES: Final = 8
QUIET_PAUSE: Final = timedelta(seconds=1)
STANDING: Final = frozenset({"ready", "degraded", "draining", "drained"})


def port_of(member: Member) -> int:
    """A port chosen by the member's id: on a host without isolated networks all members share the machine's ports."""
    number = 5_381
    for character in member.id:
        number = (number * 33 + ord(character)) % 4_294_967_296
    return FIRST_PORT + number % PORTS


def directory_of(member: Member) -> str:
    """The member's directory; two members may share a sandbox."""
    return f"/srv/echo/{member.id}"


def peers_of(member: Member, members: Sequence[Member]) -> str:
    """The content of `peers.json`: the seeds, and for a gate also some workers."""
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


def greeting_file(view: InstanceView, member: Member) -> dict[str, Any]:
    """The app's configuration as a file: the program reads it at each request, so that a change needs no restart."""
    content = f"{view.instance.config.get('greeting', GREETING)}\n"
    return {"path": f"{directory_of(member)}/greeting", "mode": "0644", "content": content}


def files(view: InstanceView, member: Member, members: Sequence[Member], step: str) -> RunTask:
    """Write its script, its configuration and the list of its peers."""
    directory = directory_of(member)
    written: list[dict[str, Any]] = [
        {"path": f"{directory}/echo_node.py", "mode": "0644", "artifact": SCRIPT},
        {"path": f"{directory}/peers.json", "mode": "0644", "content": peers_of(member, members)},
        greeting_file(view, member),
        {"path": f"{directory}/cordon", "mode": "0644", "content": "off\n"},
    ]
    return RunTask(step=step, member_id=member.id, type="files.write", arguments={"files": written}, attempts=3)


def start(member: Member, version: str, step: str) -> RunTask:
    """Start its process under supervision."""
    port = port_of(member)
    arguments: dict[str, Any] = {
        "name": service_of(member),
        "argv": ["python3", "echo_node.py", "serve", "--role", member.component_key, "--port", str(port)],
        "environment": {"ECHO_VERSION": version},
        "directory": directory_of(member),
        "restart": {"policy": "on_failure", "backoff_seconds": 1, "limit": 10},
    }
    if member.component_key == "gate":
        arguments["endpoint"] = {"name": "web", "port": port, "protocol": "http"}
    return RunTask(step=step, member_id=member.id, type="service.start", arguments=arguments, attempts=3)


def stop(member: Member, step: str) -> RunTask:
    """Stop its process; no process is not an error."""
    arguments = {"name": service_of(member), "kill": "main", "grace_seconds": 5}
    return RunTask(step=step, member_id=member.id, type="service.stop", arguments=arguments, on_failure=OnFailure.GO_ON)


def service_of(member: Member) -> str:
    """The name of its process, unique within a sandbox."""
    return f"{SERVICE}-{member.component_key}-{member.ordinal}"


def is_ready(member: Member, step: str) -> RunTask:
    """Probe until it answers."""
    arguments = {"port": port_of(member), "path": "/ready", "attempts": 40, "interval_seconds": 0.25}
    return RunTask(step=step, member_id=member.id, type="probe.http", arguments=arguments, attempts=2)


def bring_up(view: InstanceView, member: Member, members: Sequence[Member]) -> list[Step]:
    """All steps from nothing to a ready member."""
    key = member.id
    steps: list[Step] = [
        ReportMember(step=f"join/{key}", member_id=key, status="joining"),
        files(view, member, members, f"files/{key}"),
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


def update_peers(member: Member, members: Sequence[Member]) -> RunTask:
    """Write the changed list of its peers."""
    written = [{"path": f"{directory_of(member)}/peers.json", "mode": "0644", "content": peers_of(member, members)}]
    return RunTask(
        step=f"peers/{member.id}",
        member_id=member.id,
        type="files.write",
        arguments={"files": written},
        on_failure=OnFailure.GO_ON,
    )


def cordon(member: Member) -> RunTask:
    """Write the file that makes the member refuse new work."""
    written = [{"path": f"{directory_of(member)}/cordon", "mode": "0644", "content": "on\n"}]
    return RunTask(
        step=f"cordon/{member.id}", member_id=member.id, type="files.write", arguments={"files": written}, attempts=3
    )


class MemberDrain:
    """How far a member's drain is, by the probes of this operation."""

    def __init__(self, view: InstanceView, operation: Operation, member: Member) -> None:
        self.member = member
        self.probes = view.series(operation, f"quiet/{member.id}")
        self.is_quiet = bool(self.probes) and self.probes[-1].succeeded
        now, until = view.now, view.quiet_until(operation)
        self.is_late = now is not None and until is not None and now + 2 * QUIET_PAUSE >= until

    @property
    def is_given_up(self) -> bool:
        """Whether there is no time for another probe and the last one found it busy."""
        return self.is_late and bool(self.probes) and self.probes[-1].failed

    def steps(self) -> list[Step]:
        """Cordon it, then probe, pause, and probe again; the plan always contains the last probe."""
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
