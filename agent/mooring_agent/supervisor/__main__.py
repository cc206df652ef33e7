"""The supervisor as a program: `python -I -S …/supervisor/__main__.py`, for the host without namespaces.

It inherits its descriptors, gets a few settings, none of them secret, detaches by a second fork and a session of its
own, and serves.
"""

import json
import os
import sys

# Started by its path and without site-packages, so that it needs only this package and the standard library.
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from mooring_agent.supervisor.options import SupervisorOptions
from mooring_agent.supervisor.serve import serve


def main() -> None:
    """Detach, then serve with the options in the first argument."""
    settings = json.loads(sys.argv[1])
    settings["addresses"] = tuple(settings["addresses"])
    settings["drop_capabilities"] = tuple(settings["drop_capabilities"])
    if os.fork() > 0:
        os._exit(0)
    os.setsid()
    serve(SupervisorOptions(**settings))


if __name__ == "__main__":
    main()
