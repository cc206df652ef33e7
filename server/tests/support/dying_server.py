"""The product's own server, which kills itself (SIGKILL) when tasks were claimed and before anybody is answered.

A program of the tests: `python -m server.tests.support.dying_server`, with the environment of `python -m mooring api`.
"""

import os
import signal
import sys
from typing import Any

from mooring import __main__ as program
from mooring.storage.fleet import task_claim
from server.tests.support.server_process import end_with_parent


def main() -> int:
    """Serve until the first claim is committed."""
    end_with_parent()
    claim = task_claim.claim

    async def last_claim(*arguments: Any) -> list[task_claim.ClaimedTask]:
        claimed = await claim(*arguments)
        if claimed:
            os.kill(os.getpid(), signal.SIGKILL)
        return claimed

    vars(task_claim)["claim"] = last_claim
    return program.main(["api"])


if __name__ == "__main__":
    sys.exit(main())
