"""The smallest adapter whose members come up in three tasks, as those of a real app do: files, a process, a probe."""

from bench.instance_rows import SLUG
from mooring_adapter import Adapter, Finish, InstanceView, Member, Operation, Plan, ReportMember, RunTask, Step, main


def bring_up(member: Member) -> list[Step]:
    """From nothing to ready."""
    key = member.id
    written = [{"path": f"/srv/{key}/peers", "mode": "0644", "content": member.name}]
    started = {"name": "bench", "argv": ["/bin/true"]}
    return [
        ReportMember(step=f"join/{key}", member_id=key, status="joining"),
        RunTask(step=f"files/{key}", member_id=key, type="files.write", arguments={"files": written}),
        RunTask(step=f"start/{key}", member_id=key, type="service.start", arguments=started),
        RunTask(step=f"probe/{key}", member_id=key, type="probe.tcp", arguments={"port": 8080}),
        ReportMember(step=f"ready/{key}", member_id=key, status="ready", health="healthy"),
    ]


def plan(view: InstanceView, operation: Operation) -> Plan:
    """Every operation brings up the members that it names."""
    return Plan((*(step for each in view.concerned(operation) for step in bring_up(each)), Finish()))


if __name__ == "__main__":
    main(Adapter(app_slug=SLUG, plan=plan))
