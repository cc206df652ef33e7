"""What a reconcile shows of nodes that it has just corrected."""

from typing import Any

from adapters.slurm.tests.sample_views import FIRST, HEAD, end_of, member, operation, task, view
from mooring_slurm.plans import plan


def test_a_node_that_is_silent_in_the_moment_it_was_put_right_is_not_called_down() -> None:
    def node(*state: str, responding: bool = True) -> dict[str, Any]:
        return {"name": "c-one", "state": [*state], "reason": "mooring:member: drain op_0", "responding": responding}

    def left(after: dict[str, Any]) -> list[str]:
        tasks = (
            task("look/head", {"nodes": [node("IDLE", "DRAIN")]}),
            task("uncordon/one"),
            task("check/head", {"nodes": [after]}),
        )
        found = plan(view(member(HEAD), member(FIRST), tasks=tasks), operation("reconcile"))
        return [each["difference"] for each in end_of(found).evidence["differences"]]

    assert left(node("IDLE", "NOT_RESPONDING", responding=False)) == []
    assert left(node("DOWN", "NOT_RESPONDING", responding=False)) == ["down"]
