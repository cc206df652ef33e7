"""The node of the machine that the platform itself runs on: `up` lets it join without an admin's hand.

The token goes into a pipe of the program that started this one: nobody else can read it, and it is written down
nowhere.
"""

import os
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


async def offer_local_enrolment(services: Services, url: str, pipe: int) -> None:
    """Write this platform's address, a one-time token and the platform's name into a pipe, and close it.

    By the name an agent that was here before knows whether it was with this platform.
    """
    with os.fdopen(pipe, "w") as told:
        name = await task_audience(services)
        secret = new_enrolment_token()
        work: Work[EnrolmentToken] = Work(services, PLATFORM, system_context(services), Authority())
        await create_token(work, secret, REGION, {"started-by": "up"})
        told.write(f"{url}\n{secret}\n{name}\n")
