"""The policy bench measures what its names say."""

from bench.policy import EXAMPLE_REQUESTS, example_chain, measure
from mooring.core.catalog.policy import Layer


def test_the_examples_are_decided_where_they_say() -> None:
    chain = example_chain()
    decided = {name: chain.decide(request).layer for name, request in EXAMPLE_REQUESTS.items()}

    assert decided == {
        "allowed by every layer": None,
        "denied by the last layer": Layer.ENTITLEMENT,
        "denied by the first layer": Layer.GLOBAL,
    }


def test_every_example_gets_a_rate() -> None:
    rates = measure(decisions=10, rounds=1)

    assert [rate.name for rate in rates] == list(EXAMPLE_REQUESTS)
    assert all(rate.per_second > 0 for rate in rates)
