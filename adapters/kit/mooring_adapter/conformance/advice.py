"""What the author of an adapter does about a broken promise, by its key."""

from typing import Final

ADVICE: Final[dict[str, str]] = {
    "deploy": "Begin the operation, start every member of `member_ids`, report each as joining and ready, then finish.",
    "probed": "Create a probe (`probe.http`, `probe.exec`, …) after the start, and report ready when it has succeeded.",
    "correlation": "Send the operation's `correlation_id` as X-Correlation-ID with every request that is made for it.",
    "endpoints": "Report each endpoint of the manifest under `instance.endpoints`, with the member that serves it.",
    "add": "Start only the members of `member_ids`; members that are ready are not started again.",
    "side_by_side": "Create the tasks of all members before you wait for the first one; `tasks:batch` takes fifty.",
    "drain": "After the drain began, look at the member (a probe, an inspect), and report drained when it is quiet.",
    "resume": "A later drain is a new operation: keep nothing about the member from the one before.",
    "remove": "Let the member's work end, stop it, and finish; the platform tears down the rest.",
    "replace": "With `surge`, bring the new member up first, and stop the old one when the new one is ready.",
    "upgrade": "Restart fewer than half of a component's members at a time, and report the version of each.",
    "rollback": "A rollback is an upgrade to the `target_pin`: start the members again, then report the version.",
    "restart": "Stop and start every member, a few at a time.",
    "configure": "Plan from `request.input`: `instance.config` is the old one until the operation has succeeded. "
    "Bring it to the members by a reload or a restart, or fail with config_refused and the reason.",
    "actions": "Finish an action with an `output` that fits its schema, and fail an action that you do not know.",
    "graceful": "Create a stop for each service or container that runs, wait for it, then finish the stop.",
    "decommission": "Finish a stop within `phase_deadline_at`, also while other operations are being cancelled.",
    "cancel": "When an operation is cancelling, create nothing new, and finish it as cancelled.",
    "duplicates": "Treat claims and changes as hints: read the instance, and name tasks by their step.",
    "reordered": "Name each step by what it is for, never by a count: the same plan must have the same names.",
    "lost_replies": "Repeat a request whose response was lost with the same body: fence and step make that safe.",
    "unavailable": "Retry after a growing pause when the platform cannot be reached or answers `retryable`.",
    "stale_lease": "After 409 lease_lost, or when a poll names the instance in `lost`, stop and forget the fence.",
    "task_failure": "Fail the operation with the task's failure code and its `last_lines`.",
    "forbidden": "Fail the operation with permission_denied when the platform answers 403; add what is missing to "
    "the manifest's `required_actions`.",
    "node_loss": "When a member's node is gone, fail the deployment with node_lost instead of waiting.",
    "never_quiet": "Believe a failed look: fail the drain with not_quiet when the time is over.",
    "remove_failed": "A failed member has nothing to drain: finish its removal.",
    "repair": "Bring failed members up again: report joining, start, probe, report ready.",
    "token_expiry": "After 401, exchange a new assertion for a token and repeat the request.",
    "clock_skew": "Compare deadlines with `now` of the view, never with the clock of your machine.",
    "other_project": "Use an instance only with the account whose poll offered it, and drop it after 404.",
    "released": "On SIGTERM, stop your work and release every claim.",
    "interrupted_upgrade": "Keep nothing in memory: plan from the recorded steps, tasks and versions.",
    "crash": "Keep nothing in memory: plan from the recorded steps, tasks and members, with the same step names.",
}
