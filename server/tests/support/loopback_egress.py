"""Lets webhooks reach the receivers of tests, which are on loopback, where no setting opens the way.

As a program, it runs the product's own with that one seam taken hold of: `python -m ... worker`.
"""

import sys

from mooring import __main__ as program
from mooring import wiring
from mooring.core.kernel.address import Reach, read_networks
from mooring.gateways.egress import EgressClient
from mooring.settings import Settings


def loopback_egress(settings: Settings, _database_url: str = "") -> EgressClient:
    """A dialer of the networks that the settings allow, the platform's own among them."""
    return EgressClient(Reach(allowed=read_networks(settings.webhook_allow_networks), own_allowed=True))


if __name__ == "__main__":
    vars(wiring).update(outbound_for=loopback_egress)
    sys.exit(program.main(sys.argv[1:]))
