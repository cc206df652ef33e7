"""The program around an adapter: its options, its accounts, and how it stops.

An adapter's `__main__` only calls `main(Adapter(…))`. SIGTERM and SIGINT release all claims, so that another replica
continues at once; after `kill -9` it continues when the lease has expired.
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
from mooring_adapter.backoff import RetryBackoff
from mooring_adapter.claim_loop import ClaimLoop
from mooring_adapter.logs import LEVELS, configure_logging
from mooring_adapter.platform_client import AdapterKey, KeyAccount, PlatformClient, accounts_of, read_key
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
"""With few accounts the program looks for new ones more often: somebody who was just entitled to an app is waiting."""
HELD_MAX: Final = 5_000
"""How many claims one poll of the contract can name."""
VERSION: Final = "0.1.0"

log = logging.getLogger("mooring.adapter")


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """The options of this start."""

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
    """One process of an adapter: a claim loop for each account that its key opens."""

    def __init__(self, adapter: Adapter, options: ProgramOptions, key: AdapterKey) -> None:
        self.adapter, self.options, self.key = adapter, options, key
        self.settings = ClientSettings(
            retry=RetryPolicy(attempts=2),
            user_agent=f"mooring-adapter/{VERSION}",
            ca_file=options.ca_file,
            allow_plain_http=options.allow_plain_http,
        )
        self.loops: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve every account, and look for new ones periodically, until cancelled."""
        backoff = RetryBackoff(self.settings.retry, self.settings.timing.chance)
        try:
            while True:
                try:
                    await self._serve(await self._accounts())
                    backoff.reset()
                    pause = FEW_SECONDS if len(self.loops) <= FEW_ACCOUNTS else ACCOUNTS_SECONDS
                except MooringError as error:
                    pause = backoff.next_pause()
                    log.warning("cannot list the accounts; retrying: %s", error, extra={"code": error.code})
                if self.options.once and backoff.failures == 0:
                    await asyncio.gather(*self.loops.values())
                    return
                await asyncio.sleep(pause)
        finally:
            for each in self.loops.values():
                each.cancel()
            await asyncio.gather(*self.loops.values(), return_exceptions=True)

    async def _accounts(self) -> list[KeyAccount]:
        given = self.options
        if given.service_account_id is not None and given.key_id is not None:
            return [KeyAccount(service_account_id=given.service_account_id, key_id=given.key_id)]
        found = await accounts_of(given.url, self.key, self.settings, given.audience)
        wanted = self.adapter.serves
        return [each for each in found if not wanted or not each.apps or wanted.intersection(each.apps)]

    async def _serve(self, accounts: Sequence[KeyAccount]) -> None:
        known = {each.service_account_id for each in accounts}
        for account_id in [each for each in self.loops if each not in known]:
            self.loops.pop(account_id).cancel()
            log.info(
                "the platform no longer accepts the key for this account; stopped serving the account",
                extra={"service_account_id": account_id},
            )
        for account in accounts:
            running = self.loops.get(account.service_account_id)
            if running is None or running.done():
                self.loops[account.service_account_id] = asyncio.create_task(self._claim_for(account))

    async def _claim_for(self, account: KeyAccount) -> None:
        given = self.options
        credentials = ServiceAccountCredentials(
            account.service_account_id, account.key_id, self.key.private, audience=given.audience
        )
        log.info(
            "serving an account",
            extra={"service_account_id": account.service_account_id, "project_id": account.project_id},
        )
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                AsyncClient(given.url, credentials=credentials, settings=self.settings)
            )
            claim_loop = ClaimLoop(self.adapter, PlatformClient(client, given.holder), given.most)
            if given.once:
                await _once(claim_loop)
            else:
                await claim_loop.run()


async def _once(claim_loop: ClaimLoop, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Claim what is offered now, work until nothing is due, and release it.

    The platform has to answer once before anything counts as idle.
    """
    claim_loop.wait_seconds = 1.0
    work = asyncio.create_task(claim_loop.run())
    try:
        quiet = 0
        while quiet < 2 and not work.done():
            await pause(1.0)
            busy = not claim_loop.is_answered or any(each.controller.is_busy for each in claim_loop.claimed.values())
            quiet = 0 if busy else quiet + 1
    finally:
        work.cancel()
        await asyncio.wait([work])
    if not work.cancelled():
        work.result()  # without a cancellation it ends only with an error


def parser() -> argparse.ArgumentParser:
    """The options of every adapter; most can be set by an environment variable."""
    environment = os.environ.get
    options = argparse.ArgumentParser(description="A Mooring adapter: it operates instances of its app.")
    options.add_argument("--url", default=environment("MOORING_URL"), help="the platform's URL (MOORING_URL)")
    options.add_argument(
        "--key-file",
        default=environment("MOORING_KEY_FILE"),
        help="the adapter's Ed25519 private key, PEM (MOORING_KEY_FILE)",
    )
    options.add_argument(
        "--holder",
        default=environment("MOORING_HOLDER"),
        help="a name of this process for people; the host's name by default (MOORING_HOLDER)",
    )
    options.add_argument("--once", action="store_true", help="do what is due now, then exit")
    options.add_argument("--most", type=int, default=2_000, help="the most instances to claim for one account")
    options.add_argument("--log-level", choices=LEVELS, default=environment("MOORING_LOG_LEVEL") or "info")
    options.add_argument(
        "--service-account-id",
        default=environment("MOORING_SERVICE_ACCOUNT_ID"),
        help="serve only this account; needs --key-id (MOORING_SERVICE_ACCOUNT_ID, MOORING_KEY_ID)",
    )
    options.add_argument("--key-id", default=environment("MOORING_KEY_ID"), help=argparse.SUPPRESS)
    options.add_argument(
        "--audience",
        default=environment("MOORING_AUDIENCE"),
        help="the token endpoint as the platform knows it, if that is another URL (MOORING_AUDIENCE)",
    )
    options.add_argument(
        "--ca-file", default=environment("MOORING_CA_FILE"), help="trust these certificates instead of the system's"
    )
    options.add_argument("--allow-plain-http", action="store_true", help="send tokens unencrypted to other machines")
    return options


def read_options(arguments: Sequence[str] | None = None) -> ProgramOptions:
    """Parse the options; exits with the reason if one is missing."""
    reader = parser()
    given = vars(reader.parse_args(arguments))
    for name, variable in (("url", "MOORING_URL"), ("key_file", "MOORING_KEY_FILE")):
        if not given[name]:
            reader.error(f"--{name.replace('_', '-')} is missing; give it, or set {variable}")
    if (given["service_account_id"] is None) != (given["key_id"] is None):
        reader.error("--service-account-id and --key-id must be given together")
    if not 1 <= given["most"] <= HELD_MAX:
        reader.error(f"--most must be between 1 and {HELD_MAX}")
    # Two processes with the same name would renew each other's claims, so the name is made unique.
    label = (given["holder"] or socket.gethostname())[:40]
    return replace(ProgramOptions(**given), holder=f"{label}-{os.getpid()}-{secrets.token_hex(4)}")


async def _until_stopped(work: AdapterProgram) -> None:
    """Run until done, or until SIGTERM or SIGINT."""
    running = asyncio.create_task(work.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        log.info("received a signal; stopped")


def main(adapter: Adapter, arguments: Sequence[str] | None = None) -> None:
    """Run an adapter until it receives SIGTERM or SIGINT."""
    options = read_options(arguments)
    configure_logging(options.log_level)
    try:
        key = read_key(Path(options.key_file).read_bytes())
        program = AdapterProgram(adapter, options, key)
        asyncio.run(_until_stopped(program))
    except (OSError, KeyUnusable, AddressRefusedHere) as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
