"""How many policy decisions one core makes in a second: `python -m bench.policy`.

The chain has all its layers, each with lists of ordinary length, and the request asks for everything, so that an
allowed request is the longest way through. Time is the process's own CPU time: another process on the core does not
count.
"""

import sys
import time
from dataclasses import dataclass

from mooring.core.catalog.policy import (
    Layer,
    LayerRules,
    NameRules,
    PolicyChain,
    PolicyRequest,
    PolicyRules,
    SignatureRules,
)

GOAL_PER_SECOND = 50_000
DECISIONS = 100_000
ROUNDS = 3


@dataclass(frozen=True)
class PolicyRate:
    """How often something was done in a second of CPU time, in the best round."""

    name: str
    per_second: float


def example_chain() -> PolicyChain:
    """Four layers that each say something about everything."""
    registries = tuple(f"oci://registry-{number}.example/*" for number in range(20))
    return PolicyChain(
        [
            LayerRules(
                layer,
                PolicyRules(
                    sources=NameRules(allow=registries, deny=("oci://registry-3.example/bad/*",)),
                    regions=NameRules(allow=("eu-1", "eu-2", "us-1")),
                    skus=NameRules(allow=tuple(f"gpu-{number}" for number in range(50)), deny=("gpu-7",)),
                    apps=NameRules(deny=tuple(f"app-{number}" for number in range(100))),
                    signatures=SignatureRules.IMAGES,
                    gpus_max=64 - depth,
                ),
            )
            for depth, layer in enumerate(Layer)
        ]
    )


EXAMPLE_REQUESTS = {
    "allowed by every layer": PolicyRequest("oci://registry-5.example/team/app", "eu-1", "gpu-9", "web-tool", 8, True),
    "denied by the last layer": PolicyRequest(
        "oci://registry-5.example/team/app", "eu-1", "gpu-9", "web-tool", 62, True
    ),
    "denied by the first layer": PolicyRequest(source="oci://registry-3.example/bad/app"),
}


def measure(decisions: int = DECISIONS, rounds: int = ROUNDS) -> list[PolicyRate]:
    """Decide each example often, and take the best of some rounds."""
    chain = example_chain()
    rates = []
    for name, request in EXAMPLE_REQUESTS.items():
        seconds = []
        for _ in range(rounds):
            begun = time.process_time()
            for _ in range(decisions):
                chain.decide(request)
            seconds.append(max(time.process_time() - begun, 1e-9))
        rates.append(PolicyRate(name, decisions / min(seconds)))
    return rates


def main() -> int:
    """Print the rates; the exit code says whether the goal was reached."""
    rates = measure()
    for rate in rates:
        sys.stdout.write(f"policy decisions, {rate.name}: {rate.per_second:,.0f} per second and core\n")
    return 0 if all(rate.per_second >= GOAL_PER_SECOND for rate in rates) else 1


if __name__ == "__main__":
    sys.exit(main())
