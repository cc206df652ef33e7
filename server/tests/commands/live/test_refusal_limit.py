"""A node that refuses without end cannot fill the audit trail, and the omitted rows are counted."""

from mooring.commands.live.refusal_limit import BURST, NODES_MAX, SECONDS_PER_ROW, RefusalLimit


def test_rows_of_one_node_are_bounded_and_the_omitted_ones_are_counted() -> None:
    now = 0.0
    refusals = RefusalLimit(lambda: now)
    assert [refusals.take("one") for _ in range(BURST + 7)] == [0] * BURST + [None] * 7
    assert refusals.take("another") == 0, "each node has its own"
    now = SECONDS_PER_ROW
    assert [refusals.take("one") for _ in range(3)] == [7, None, None]
    now = SECONDS_PER_ROW * 1000
    assert [refusals.take("one") for _ in range(BURST + 1)] == [2, *[0] * (BURST - 1), None]


def test_nodes_that_went_silent_are_forgotten() -> None:
    refusals = RefusalLimit(lambda: 0.0)
    for number in range(NODES_MAX + 10):
        refusals.take(str(number))
    assert len(refusals._buckets) == NODES_MAX
