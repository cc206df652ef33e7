"""When the charge of an allocation ends that was requested for a member: not because its node was cut off."""

from copy import deepcopy
from dataclasses import replace

from mooring.core.runtime.instance_snapshot import NodeStanding
from server.tests.support.decision_context import NOW
from server.tests.support.instance_rows import operation, theatre
from tests.support.rows import every_row

REACHABLE = NodeStanding("nod_1", "ready")
UNREACHABLE = NodeStanding("nod_1", "ready", NOW)
RETIRED = NodeStanding("nod_1", "retired", NOW, "the machine burnt down", "its disks")


@every_row("started", [True, False])
def test_a_failure_on_a_node_that_does_not_answer_ends_no_charge_and_a_stop_does(started: bool) -> None:
    made = theatre(
        operation("decommission", "running", phase="platform", requested_by="system"),
        status="failed",
        nodes={"nod_1": UNREACHABLE},
        started={"mem_0"} if started else set(),
    )
    made.members["mem_0"] = replace(made.members["mem_0"], owns_allocation=True)
    made.settle()
    assert (made.allocations["alc_0"].status, made.members["mem_0"].status) == ("active", "removing")
    assert made.operations["op_decommission"].blocker_code == "node_unreachable"
    asked, back, given_up = (deepcopy(made) for _ in range(3))
    asked.instance = replace(asked.instance, status="stopping", stop_requested_at=NOW)
    back.nodes["nod_1"] = REACHABLE
    given_up.nodes["nod_1"] = RETIRED
    for each in (asked, back, given_up):
        each.settle()
        assert each.allocations["alc_0"].status == "releasing"
    assert given_up.members["mem_0"].status == "removed"


def test_a_clean_receipt_ends_the_charge_although_the_node_still_counts_as_unreachable() -> None:
    made = theatre(
        operation("decommission", "running", phase="platform", requested_by="system"),
        status="failed",
        nodes={"nod_1": UNREACHABLE},
        started={"mem_0"},
    )
    made.members["mem_0"] = replace(made.members["mem_0"], owns_allocation=True)
    made.clean = {"mem_0": "rcp_1"}
    made.settle()
    assert (made.allocations["alc_0"].status, made.members["mem_0"].status) == ("releasing", "removed")
