"""The node of the machine that the platform itself runs on: `up` lets it join without an admin.

The token goes through a pipe to the program that started this one: no other process can read it, and it is never
stored.
"""

import os
from pathlib import Path
from typing import Final

from mooring.commands.fleet.enrolment import create_token
from mooring.commands.identity.platform_key import task_audience
from mooring.commands.kernel.work import Work, system_context
from mooring.commands.services import Services
from mooring.core.fleet.enrolment import EnrolmentToken
from mooring.core.kernel.permissions import Authority
from mooring.gateways.passwords import new_enrolment_token
from mooring.storage.kernel.database import PLATFORM

REGION: Final = "local"


async def offer_local_enrolment(services: Services, url: str, pipe: int, *, ca_file: Path | None = None) -> None:
    """Write this platform's URL, a one-time token and the platform's name into a pipe, and close it.

    The file of the CA certificates follows if there is one.
    From the name, an agent with earlier state knows whether it had enrolled with this platform.
    """
    with os.fdopen(pipe, "w") as output:
        name = await task_audience(services)
        secret = new_enrolment_token()
        work: Work[EnrolmentToken] = Work(services, PLATFORM, system_context(services), Authority())
        await create_token(work, secret, REGION, {"started-by": "up"})
        output.write(f"{url}\n{secret}\n{name}\n" + (f"{ca_file}\n" if ca_file is not None else ""))
