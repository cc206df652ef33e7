"""Members that are to become quiet: drained in Slurm under the platform's own name, and looked at until no job is left.

Quiet is what was observed: the node has DRAIN and runs nothing. What cannot be observed is not quiet. The look is made
on the worker itself and asks the controller; where the worker cannot be asked any more, the controller is.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from mooring_adapter import Member, OnFailure, Operation, RunTask, Step, Task, Wait
from mooring_slurm.members import OWNER, UP, ClusterMembers, OperationRefused, ask, is_reached
from mooring_slurm.responses import answer_of, code_of, ended, job_ids, jobs_named

PAUSE: Final = timedelta(seconds=1)
ROUND_SECONDS: Final = 5
"""How long one look waits for quiet: a worker's tasks are done one after another, and a stop must not wait for it."""
ROUNDS: Final = 60
"""About so many looks are made, however long the drain may last: each is a step that people see."""
REASON_LENGTH_MAX: Final = 400
DEAD: Final = frozenset({"DOWN", "NOT_RESPONDING", "FAIL", "ERROR", "UNKNOWN", "POWERED_DOWN"})


def cordon(cluster: ClusterMembers, member: Member, operation: Operation) -> RunTask:
    """No new jobs for its node."""
    asked = next((str(each["reason"]) for each in reversed(member.holds) if each.get("reason")), "")
    reason = f"{operation.kind} {operation.id}: {asked}" if asked else f"{operation.kind} {operation.id}"
    words = ("drain", "--node", member.name, "--owner", OWNER, f"--reason={reason[:REASON_LENGTH_MAX]}")
    return ask(cluster.controller, f"cordon/{member.id}", *words)


def uncordon(cluster: ClusterMembers, member: Member, step: str, **more: Any) -> RunTask:
    """Jobs again for its node, where the platform itself had drained it; somebody else's drain stays."""
    return ask(cluster.controller, step, "resume", "--node", member.name, "--owner", OWNER, **more)


class WorkerDrain:
    """How far a member is on its way to being quiet, by the looks that were made for this operation."""

    def __init__(self, cluster: ClusterMembers, operation: Operation, member: Member) -> None:
        self.cluster, self.operation, self.member = cluster, operation, member
        self.looks = cluster.view.series(operation, f"quiet/{member.id}")
        last = self.looks[-1] if self.looks else None
        self.said: Mapping[str, Any] = answer_of(last) or {}
        self.is_quiet = last is not None and last.succeeded and self.said.get("quiet") is True
        self.is_over = last is not None and last.is_over
        self.left = self._left()
        asked = ended(cluster.view, operation, f"cordon/{member.id}")
        self.is_absent = asked is not None and asked.failed and code_of(asked) == "not_found"

    @property
    def is_drained(self) -> bool:
        """Whether the worker itself was asked, and is quiet: only that is told as drained."""
        return self.is_quiet and self.looks[-1].member_id in (None, self.member.id)

    @property
    def is_late(self) -> bool:
        """Whether there is no time for another look."""
        return self.left is not None and self.left <= 2 * PAUSE.total_seconds()

    @property
    def is_given_up(self) -> bool:
        """The time is over, and the last look did not find it quiet."""
        return self.is_over and not self.is_quiet and self.is_late

    @property
    def is_dead(self) -> bool:
        """Slurm does not reach the node either, so that nothing runs there that could be waited for."""
        node = self.said.get("node")
        if not self.is_over or self.is_quiet or not isinstance(node, Mapping):
            return False
        return bool(DEAD & set(node.get("state", ()))) and not node.get("responding", True)

    @property
    def jobs(self) -> Sequence[Any]:
        """The jobs that the last look found."""
        found = self.said.get("jobs")
        return found if isinstance(found, list) else []

    def steps(self) -> list[Step]:
        """Ask for no new work, then look, pause, and look again; the last look is in the plan."""
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
        """Why a drain ends without it: with the jobs, or that nobody could look."""
        name = self.member.name
        if self.jobs:
            detail = (
                f"{name} still runs {jobs_named(self.jobs)}; it takes no new jobs, and stays so until it is resumed"
            )
            return OperationRefused("not_quiet", detail, jobs=job_ids(self.jobs))
        why = _why(self.looks[-1]) if self.looks else "there was no time to look"
        return OperationRefused("not_quiet", f"{name} was not seen to be quiet: {why}")

    def _asked(self) -> Member:
        """Who is asked: the worker itself, unless it cannot be, or did not answer the last time."""
        if not is_reached(self.member) or self.member.status not in UP:
            return self.cluster.controller
        unanswered = self.is_over and not self.said and self.operation.kind != "drain"
        return self.cluster.controller if unanswered else self.member

    def _left(self) -> float | None:
        now, until = self.cluster.view.now, self.cluster.view.quiet_until(self.operation)
        return None if now is None or until is None else (until - now).total_seconds()

    def _round(self) -> int:
        """How long the next look lasts: it ends early where the node becomes quiet."""
        if self.left is None:
            return ROUND_SECONDS
        return max(int(min(ROUND_SECONDS, self.left - 2 * PAUSE.total_seconds())), 0)

    def _pause(self) -> timedelta:
        """How long to wait between two looks: the longer the drain may last, the longer, and never past its end."""
        first = self.looks[0].created_at if self.looks else None
        now = self.cluster.view.now
        if self.left is None or first is None or now is None:
            return PAUSE
        whole = self.left + (now - first).total_seconds()
        wanted = min(whole / ROUNDS - ROUND_SECONDS, self.left - 3 * PAUSE.total_seconds())
        return max(timedelta(seconds=wanted), PAUSE)


def _why(look: Task) -> str:
    return look.failure_detail or look.failure_code or look.status
