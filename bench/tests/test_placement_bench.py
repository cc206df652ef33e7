"""The placement bench measures what its names say."""

from bench.placement import example_nodes, example_requests, measure
from mooring.core.catalog.compatibility import CapacityShape


def test_the_examples_are_the_same_each_time_and_hold_every_shape() -> None:
    assert example_nodes(50) == example_nodes(50)
    requests = example_requests(200)
    assert requests == example_requests(200)
    assert {each.shape for each in requests} == set(CapacityShape)


def test_a_small_fleet_is_measured() -> None:
    found = measure(nodes=200, requests=50)
    assert (found.nodes, found.requests) == (200, 50)
    assert found.placed > 0
    assert found.per_second > 0
