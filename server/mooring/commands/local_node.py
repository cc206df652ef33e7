"""The node of the machine that the platform itself runs on: `up` lets it join without an admin's hand.

Whoever may read the file that the token is written to may read the platform's own keys as well, so that this gives
nobody anything new.
"""

import os
from pathlib import Path
from typing import Final

from mooring.commands.enrolment import create_token
from mooring.commands.first_start import system_context
from mooring.commands.work import Services, Work
from mooring.core.enrolment import EnrolmentToken
from mooring.core.permissions import Authority
from mooring.gateways.passwords import new_enrolment_token
from mooring.storage.database import PLATFORM

REGION: Final = "local"


async def offer_local_enrolment(services: Services, url: str, path: Path) -> None:
    """Write this platform's address and a one-time token into a file that only this account may read."""
    secret = new_enrolment_token()
    work: Work[EnrolmentToken] = Work(services, PLATFORM, system_context(services), Authority())
    await create_token(work, secret, REGION, {"started-by": "up"})
    unfinished = path.with_name(f".{path.name}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{url}\n{secret}\n")
    os.replace(unfinished, path)
