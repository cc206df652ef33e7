"""A pause that grows, with some chance in it, so that many agents do not come back at once."""

import asyncio
import random
from typing import Final

FIRST_SECONDS: Final = 0.5
LONGEST_SECONDS: Final = 30.0


class Pause:
    """How long to wait before the next try."""

    def __init__(self) -> None:
        self._seconds = FIRST_SECONDS

    def over(self) -> None:
        """It worked: the next pause is short again."""
        self._seconds = FIRST_SECONDS

    async def wait(self) -> None:
        """Wait, and let the next pause be longer."""
        await asyncio.sleep(random.uniform(self._seconds / 2, self._seconds))
        self._seconds = min(self._seconds * 2, LONGEST_SECONDS)
