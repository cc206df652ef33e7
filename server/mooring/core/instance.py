"""Instance: one launched app in a project.

The state says how far the launch or its end has come. Health is observed beside it, and what happens to a
running instance (upgrade, rollback, reconcile, repair, restart) is an operation, not a state. Stop and
decommission are one act. `failed` is not final: what is left is torn down while the state stays `failed`,
and a later stop finds the closing records and passes through `stopping` to `stopped`.
"""

from enum import StrEnum

from mooring.core.machine import Edge, Machine, Who


class InstanceState(StrEnum):
    CREATED = "created"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class InstanceTrigger(StrEnum):
    START = "start"
    REPORT_READY = "report_ready"
    FAIL = "fail"
    STOP = "stop"
    FINISH_TEARDOWN = "finish_teardown"


S, T = InstanceState, InstanceTrigger

INSTANCE = Machine(
    name="instance",
    about="One launched app in a project, bound to allocations through its members.",
    states=InstanceState,
    triggers=InstanceTrigger,
    initial=S.CREATED,
    meaning={
        S.CREATED: "accepted and stored; its adapter has not begun",
        S.STARTING: "its adapter builds the members",
        S.RUNNING: "the adapter reported that the app is ready; health is observed beside it",
        S.STOPPING: "it is torn down, and waits for a closing record of each member",
        S.STOPPED: "each member has a closing record; `teardown_proof` says of which kind",
        S.FAILED: "it ended with an error; the failure and the last logs stay readable",
    },
    edges=(
        Edge(S.CREATED, T.START, S.STARTING, Who.ADAPTER, "Its adapter claims it and begins to deploy."),
        Edge(S.CREATED, T.FAIL, S.FAILED, Who.WORKER, "No adapter began before the deadline."),
        Edge(S.CREATED, T.STOP, S.STOPPING, Who.USER, "A caller gives it up before anything was begun."),
        Edge(S.STARTING, T.REPORT_READY, S.RUNNING, Who.ADAPTER, "Its adapter observed that it is ready."),
        Edge(
            S.STARTING,
            T.FAIL,
            S.FAILED,
            Who.ADAPTER,
            "The deployment came to an error, or the worker saw its deadline pass.",
        ),
        Edge(S.STARTING, T.STOP, S.STOPPING, Who.USER, "A caller gives it up while it is being built."),
        Edge(S.RUNNING, T.FAIL, S.FAILED, Who.ADAPTER, "The app ended by itself, and not as it should."),
        Edge(S.RUNNING, T.STOP, S.STOPPING, Who.USER, "A caller stops it, or its allocation is released."),
        Edge(
            S.STOPPING,
            T.FINISH_TEARDOWN,
            S.STOPPED,
            Who.WORKER,
            "Each member has a closing record: the end is observed or answered for, not assumed.",
        ),
        Edge(S.FAILED, T.STOP, S.STOPPING, Who.USER, "A caller has seen the failure and closes it."),
    ),
    requires={
        S.STOPPED: frozenset({"stopped_at", "teardown_proof"}),
        S.FAILED: frozenset({"failed_at", "failure_code"}),
    },
    needs_closing_records=frozenset({S.STOPPED}),
)
