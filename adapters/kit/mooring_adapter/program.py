"""The program around an adapter: its options, its accounts, and its end.

`main(Adapter(…))` is all that an adapter's `__main__` has to call. SIGTERM and SIGINT let go of what is held, so that
another replica goes on at once; after `kill -9` it goes on when the lease is over.
"""

import argparse
import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mooring_adapter.adapter import Adapter
from mooring_adapter.claim_loop import ClaimLoop
from mooring_adapter.logs import LEVELS, configure_logging
from mooring_adapter.platform_client import AdapterAccount, AdapterKey, PlatformClient, accounts_of, read_key
from mooring_sdk import (
    AddressRefusedHere,
    AsyncClient,
    ClientSettings,
    KeyUnusable,
    MooringError,
    RetryPolicy,
    ServiceAccountCredentials,
)

ACCOUNTS_SECONDS: Final = 30.0
FEW_ACCOUNTS: Final = 20
FEW_SECONDS: Final = 3.0
"""With few accounts it is looked for new ones more often: whoever was just entitled to an app waits for it."""
HELD_MAX: Final = 5_000
"""What one poll of the contract can name."""
VERSION: Final = "0.1.0"

log = logging.getLogger("mooring.adapter")


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """How the program was started."""

    url: str
    key_file: str
    holder: str
    once: bool = False
    most: int = 2_000
    log_level: str = "info"
    service_account_id: str | None = None
    key_id: str | None = None
    audience: str | None = None
    ca_file: str | None = None
    allow_plain_http: bool = False


class AdapterProgram:
    """One process of an adapter: a holder for each account that its key opens."""

    def __init__(self, adapter: Adapter, options: ProgramOptions, key: AdapterKey) -> None:
        self.adapter, self.options, self.key = adapter, options, key
        self.settings = ClientSettings(
            retry=RetryPolicy(attempts=2),
            user_agent=f"mooring-adapter/{VERSION}",
            ca_file=options.ca_file,
            allow_plain_http=options.allow_plain_http,
        )
        self.holders: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve every account, and look for new ones now and then, until cancelled."""
        failures = 0
        try:
            while True:
                try:
                    await self._serve(await self._accounts())
                    failures = 0
                    pause = FEW_SECONDS if len(self.holders) <= FEW_ACCOUNTS else ACCOUNTS_SECONDS
                except MooringError as error:
                    failures += 1
                    pause = self.settings.retry.pause(failures, self.settings.timing.chance())
                    log.warning("the accounts could not be asked for: %s", error, extra={"code": error.code})
                if self.options.once and failures == 0:
                    await asyncio.gather(*self.holders.values())
                    return
                await asyncio.sleep(pause)
        finally:
            for each in self.holders.values():
                each.cancel()
            await asyncio.gather(*self.holders.values(), return_exceptions=True)

    async def _accounts(self) -> list[AdapterAccount]:
        given = self.options
        if given.service_account_id is not None and given.key_id is not None:
            return [AdapterAccount(service_account_id=given.service_account_id, key_id=given.key_id)]
        found = await accounts_of(given.url, self.key, self.settings, given.audience)
        wanted = self.adapter.serves
        return [each for each in found if not wanted or not each.apps or wanted.intersection(each.apps)]

    async def _serve(self, accounts: Sequence[AdapterAccount]) -> None:
        known = {each.service_account_id for each in accounts}
        for account_id in [each for each in self.holders if each not in known]:
            self.holders.pop(account_id).cancel()
            log.info("an account is no longer ours", extra={"service_account_id": account_id})
        for account in accounts:
            running = self.holders.get(account.service_account_id)
            if running is None or running.done():
                self.holders[account.service_account_id] = asyncio.create_task(self._hold(account))

    async def _hold(self, account: AdapterAccount) -> None:
        given = self.options
        credentials = ServiceAccountCredentials(
            account.service_account_id, account.key_id, self.key.private, audience=given.audience
        )
        log.info("serving", extra={"service_account_id": account.service_account_id, "project_id": account.project_id})
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                AsyncClient(given.url, credentials=credentials, settings=self.settings)
            )
            holder = ClaimLoop(self.adapter, PlatformClient(client, given.holder), given.most)
            if given.once:
                await _once(holder)
            else:
                await holder.run()


async def _once(holder: ClaimLoop, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Claim what is offered now, work until all of it rests, and give it back.

    Nothing rests before the platform has said what there is.
    """
    holder.wait_seconds = 1.0
    work = asyncio.create_task(holder.run())
    try:
        quiet = 0
        while quiet < 2 and not work.done():
            await pause(1.0)
            busy = not holder.is_answered or any(each.keeper.is_busy for each in holder.kept.values())
            quiet = 0 if busy else quiet + 1
    finally:
        work.cancel()
        await asyncio.wait([work])
    if not work.cancelled():
        work.result()  # it ends by itself with an error alone


def parser() -> argparse.ArgumentParser:
    """The options of every adapter; each can be a variable of the environment."""
    environment = os.environ.get
    options = argparse.ArgumentParser(description="An adapter of Mooring: it operates instances of its app.")
    options.add_argument("--url", default=environment("MOORING_URL"), help="the platform's address (MOORING_URL)")
    options.add_argument(
        "--key-file",
        default=environment("MOORING_KEY_FILE"),
        help="the adapter's Ed25519 private key, PEM (MOORING_KEY_FILE)",
    )
    options.add_argument(
        "--holder",
        default=environment("MOORING_HOLDER"),
        help="a name for this process in what people see; made up where none is given (MOORING_HOLDER)",
    )
    options.add_argument("--once", action="store_true", help="do what is due now, and end")
    options.add_argument("--most", type=int, default=2_000, help="how many instances to hold under one account")
    options.add_argument("--log-level", choices=LEVELS, default=environment("MOORING_LOG_LEVEL") or "info")
    options.add_argument(
        "--service-account-id",
        default=environment("MOORING_SERVICE_ACCOUNT_ID"),
        help="serve this account alone; with --key-id (MOORING_SERVICE_ACCOUNT_ID, MOORING_KEY_ID)",
    )
    options.add_argument("--key-id", default=environment("MOORING_KEY_ID"), help=argparse.SUPPRESS)
    options.add_argument(
        "--audience",
        default=environment("MOORING_AUDIENCE"),
        help="the token endpoint as the platform knows it, where it has another address (MOORING_AUDIENCE)",
    )
    options.add_argument("--ca-file", default=environment("MOORING_CA_FILE"), help="certificates to trust instead")
    options.add_argument("--allow-plain-http", action="store_true", help="send tokens unencrypted to other machines")
    return options


def read_options(arguments: Sequence[str] | None = None) -> ProgramOptions:
    """The options of this start; ends the program with the reason where one is missing."""
    reader = parser()
    given = vars(reader.parse_args(arguments))
    for name, variable in (("url", "MOORING_URL"), ("key_file", "MOORING_KEY_FILE")):
        if not given[name]:
            reader.error(f"say --{name.replace('_', '-')}, or set {variable}")
    if (given["service_account_id"] is None) != (given["key_id"] is None):
        reader.error("--service-account-id and --key-id go together")
    if not 1 <= given["most"] <= HELD_MAX:
        reader.error(f"--most is between 1 and {HELD_MAX}")
    # Two processes of one name would renew each other's claims: the name is made unique.
    label = (given["holder"] or socket.gethostname())[:40]
    return replace(ProgramOptions(**given), holder=f"{label}-{os.getpid()}-{secrets.token_hex(4)}")


async def _until_told(work: AdapterProgram) -> None:
    """Run until the end, or until SIGTERM or SIGINT."""
    running = asyncio.create_task(work.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        log.info("told to end")


def main(adapter: Adapter, arguments: Sequence[str] | None = None) -> None:
    """Run an adapter until it is told to end."""
    options = read_options(arguments)
    configure_logging(options.log_level)
    try:
        key = read_key(Path(options.key_file).read_bytes())
        program = AdapterProgram(adapter, options, key)
        asyncio.run(_until_told(program))
    except (OSError, KeyUnusable, AddressRefusedHere) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
