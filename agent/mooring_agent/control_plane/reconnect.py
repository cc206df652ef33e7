"""The delay before the agent contacts the platform again."""

import asyncio
import random
from typing import Final

from mooring_agent.backoff import Backoff

FIRST_SECONDS: Final = 0.5
LONGEST_SECONDS: Final = 30.0


class ReconnectBackoff(Backoff):
    """A back-off with jitter, so that many agents do not reconnect at the same moment."""

    def __init__(self) -> None:
        super().__init__(FIRST_SECONDS, LONGEST_SECONDS)

    async def wait(self) -> None:
        """Sleep for half of the delay up to all of it."""
        seconds = self.next_seconds()
        await asyncio.sleep(random.uniform(seconds / 2, seconds))
