"""An agent of its own in the network in which it is started: it gives a sandbox the whole machine, and runs a program.

`<state> <address>`, the program on standard input; prints what the program printed, and fails if anything is left.
"""

import asyncio
import sys
from pathlib import Path

from agent.tests.support.namespace_sandboxes import Inside, left_of, spec_of
from mooring_agent.hosts.contract import Owner
from mooring_agent.hosts.namespace import NamespaceHost


async def main() -> None:
    state, address = sys.argv[1:]
    host = NamespaceHost(Path(state), "nod_whole", address=address)
    try:
        facts = await host.create(spec_of("alc_1", machine_network=True))
        assert facts.address == address
        print(await Inside(host, Owner("alc_1", "member")).python(sys.stdin.read()))
    finally:
        report = await host.destroy("alc_1")
    assert report.clean, report
    assert left_of(host) == []


if __name__ == "__main__":
    asyncio.run(main())
