"""The budget of reactions to lost trust: a few at a time of each app, each tenant and the platform."""

from mooring.core.runtime.trust_reaction import ReactionBudget, UntrustedInstance, choose
from tests.support.rows import every_row

BUDGET = ReactionBudget(per_app=3, per_tenant=2, at_once=4)


def instances(*places: str) -> list[UntrustedInstance]:
    """Instances `i-0`, `i-1`, … of these tenants and apps, written as `tenant/app`."""
    return [UntrustedInstance(f"i-{number}", *each.split("/")) for number, each in enumerate(places)]


@every_row(
    "candidates, under_way, chosen",
    [
        (["a/x", "a/x", "a/x"], [], ["i-0", "i-1"]),  # of one tenant
        (["a/x", "b/x", "c/x", "d/x"], [], ["i-0", "i-1", "i-2"]),  # of one app
        (["a/v", "b/w", "c/x", "d/y", "e/z"], [], ["i-0", "i-1", "i-2", "i-3"]),  # of the platform
        (["a/x", "a/x", "b/x"], [0], ["i-0", "i-1", "i-2"]),  # what is under way goes on
        (["a/x", "a/x", "a/x", "b/x"], [1, 2], ["i-1", "i-2", "i-3"]),  # and takes its room
    ],
)
def test_only_so_many_instances_are_drained_or_stopped_at_once(
    candidates: list[str], under_way: list[int], chosen: list[str]
) -> None:
    waiting = instances(*candidates)
    assert list(choose(waiting, [waiting[each] for each in under_way], BUDGET)) == chosen
