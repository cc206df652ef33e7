"""Drains of workers: in Slurm under the platform's own name, and observed until no job is left.

A worker is quiet if its node was observed to have DRAIN and no jobs; a node that cannot be observed is not quiet. The
check runs on the worker itself and asks the controller; if the worker is unreachable, it runs on the controller.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from mooring_adapter import Blocked, Member, OnFailure, Operation, RunTask, Step, Task, Wait
from mooring_slurm.members import OWNER, UP, ClusterMembers, OperationRefused, ask, is_reached
from mooring_slurm.responses import answer_of, code_of, ended, job_ids, jobs_named

PAUSE: Final = timedelta(seconds=1)
ROUND_SECONDS: Final = 5
"""How long one check waits for quiet: a worker runs its tasks one after the other, and a stop must not wait long."""
ROUNDS: Final = 60
"""About how many checks a drain makes, however long it may last: people see each as a step."""
REASON_LENGTH_MAX: Final = 400
DEAD: Final = frozenset({"DOWN", "NOT_RESPONDING", "FAIL", "ERROR", "UNKNOWN", "POWERED_DOWN"})


def cordon(cluster: ClusterMembers, member: Member, operation: Operation) -> RunTask:
    """Drain its node: it gets no new jobs."""
    asked = next((str(each["reason"]) for each in reversed(member.holds) if each.get("reason")), "")
    reason = f"{operation.kind} {operation.id}: {asked}" if asked else f"{operation.kind} {operation.id}"
    words = ("drain", "--node", member.name, "--owner", OWNER, f"--reason={reason[:REASON_LENGTH_MAX]}")
    return ask(cluster.controller, f"cordon/{member.id}", *words)


def uncordon(cluster: ClusterMembers, member: Member, step: str, **more: Any) -> RunTask:
    """Resume its node if the platform itself had drained it; drains of others stay."""
    return ask(cluster.controller, step, "resume", "--node", member.name, "--owner", OWNER, **more)


class WorkerDrain:
    """How far a worker's drain is, by the checks of this operation."""

    def __init__(self, cluster: ClusterMembers, operation: Operation, member: Member) -> None:
        self.cluster, self.operation, self.member = cluster, operation, member
        self.looks = cluster.view.series(operation, f"quiet/{member.id}")
        last = self.looks[-1] if self.looks else None
        self.answer: Mapping[str, Any] = answer_of(last) or {}
        self.is_quiet = last is not None and last.succeeded and self.answer.get("quiet") is True
        self.is_over = last is not None and last.is_over
        self.left = self._left()
        asked = ended(cluster.view, operation, f"cordon/{member.id}")
        self.is_absent = asked is not None and asked.failed and code_of(asked) == "not_found"

    @property
    def is_drained(self) -> bool:
        """Whether the check ran on the worker itself and found it quiet: only then is it reported as drained."""
        return self.is_quiet and self.looks[-1].member_id in (None, self.member.id)

    @property
    def is_late(self) -> bool:
        """Whether there is no time for another check."""
        return self.left is not None and self.left <= 2 * PAUSE.total_seconds()

    @property
    def is_given_up(self) -> bool:
        """Whether the time is over and the last check found it busy."""
        return self.is_over and not self.is_quiet and self.is_late

    @property
    def is_dead(self) -> bool:
        """Whether Slurm does not reach the node either, so that there is nothing to wait for."""
        node = self.answer.get("node")
        if not self.is_over or self.is_quiet or not isinstance(node, Mapping):
            return False
        return bool(DEAD & set(node.get("state", ()))) and not node.get("responding", True)

    @property
    def jobs(self) -> Sequence[Any]:
        """The jobs that the last check found."""
        found = self.answer.get("jobs")
        return found if isinstance(found, list) else []

    def blocker(self) -> list[Step]:
        """The jobs that the drain waits for, by the last check that is over; it stands last in a plan."""
        over = next((each for each in reversed(self.looks) if each.is_over), None)
        jobs = (answer_of(over) or {}).get("jobs")
        if self.is_quiet or not isinstance(jobs, list) or not jobs:
            return []
        detail = f"{self.member.name} still runs {jobs_named(jobs)}"
        return [Blocked(step=f"busy/{self.member.id}", code="not_quiet", detail=detail, after=())]

    def steps(self) -> list[Step]:
        """Drain the node, then check, pause, and check again; the plan always contains the last check."""
        found: list[Step] = [cordon(self.cluster, self.member, self.operation)]
        number = max(len(self.looks), 1)
        if self.is_over and not self.is_quiet and not self.is_late:
            number += 1
            ended_at = self.looks[-1].finished_at
            if ended_at is not None:
                until = ended_at + self._pause()
                found.append(Wait(step=f"pause/{self.member.id}", until=until, member_id=self.member.id))
        seconds = self._round()
        words = ("quiet", "--node", self.member.name, "--seconds", str(seconds))
        before = tuple(each.step for each in found)
        found.append(
            ask(
                self._asked(),
                f"quiet/{self.member.id}/{number}",
                *words,
                seconds=seconds,
                attempts=1,
                on_failure=OnFailure.GO_ON,
                after=before,
            )
        )
        return found

    def refusal(self) -> OperationRefused:
        """Why the drain failed: the remaining jobs, or that the check itself failed."""
        name = self.member.name
        if self.jobs:
            detail = f"{name} still runs {jobs_named(self.jobs)}; it stays drained until it is resumed"
            return OperationRefused("not_quiet", detail, jobs=job_ids(self.jobs))
        why = _why(self.looks[-1]) if self.looks else "there was no time for a check"
        return OperationRefused("not_quiet", f"{name} was not observed to be quiet: {why}")

    def _asked(self) -> Member:
        """Where the check runs: on the worker, unless it is unreachable or did not answer the last time."""
        if not is_reached(self.member) or self.member.status not in UP:
            return self.cluster.controller
        unanswered = self.is_over and not self.answer and self.operation.kind != "drain"
        return self.cluster.controller if unanswered else self.member

    def _left(self) -> float | None:
        now, until = self.cluster.view.now, self.cluster.view.quiet_until(self.operation)
        return None if now is None or until is None else (until - now).total_seconds()

    def _round(self) -> int:
        """How long the next check may last; it ends as soon as the node is quiet."""
        if self.left is None:
            return ROUND_SECONDS
        return max(int(min(ROUND_SECONDS, self.left - 2 * PAUSE.total_seconds())), 0)

    def _pause(self) -> timedelta:
        """The pause between two checks: longer for long drains, and never past the drain's end."""
        first = self.looks[0].created_at if self.looks else None
        now = self.cluster.view.now
        if self.left is None or first is None or now is None:
            return PAUSE
        whole = self.left + (now - first).total_seconds()
        wanted = min(whole / ROUNDS - ROUND_SECONDS, self.left - 3 * PAUSE.total_seconds())
        return max(timedelta(seconds=wanted), PAUSE)


def _why(look: Task) -> str:
    return look.failure_detail or look.failure_code or look.status
