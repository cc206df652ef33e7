"""The lookup by which an adapter of many projects finds its service accounts: by its key.

The adapter signs an assertion with its key, about that same key, and the platform answers with the active accounts
that have it. Nothing is created or changed; the adapter then requests a token for an account in the usual way.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Final

from mooring.commands.services import Services
from mooring.core.identity.assertion import check_assertion, read_assertion, refused
from mooring.core.identity.service_account import ED25519_KEY_BYTES
from mooring.core.kernel.decision import AuditRecord, DecisionContext
from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.signing.signatures import verifies
from mooring.storage.identity import service_account as accounts
from mooring.storage.identity.service_account import KeyHolder
from mooring.storage.kernel.page_window import PageWindow
from mooring.storage.kernel.unit_of_work import Origin

KEY_PREFIX: Final = "key:"
ACTION: Final = "runtime.accounts"
ACCOUNTS_MAX: Final = 1_000


async def accounts_of_key(
    services: Services,
    context: DecisionContext,
    text: str,
    audiences: tuple[str, ...],
    origin: Origin,
    *,
    after: str,
    guessed: Callable[[], None],
) -> list[KeyHolder]:
    """The accounts of the key that signed the assertion `text`, in the order of their ids, after the id `after`.

    `guessed` is called before a refusal is recorded, and may refuse instead.
    """
    try:
        assertion = read_assertion(text)
        key = _key(assertion.holder_id)
        if not verifies(key, assertion.signature, assertion.signed):
            raise refused("the key that the assertion names did not sign it")
        check_assertion(assertion, audiences, context.now)
    except Refusal as refusal:
        if refusal.code is Code.ASSERTION_REFUSED:
            guessed()
            audited = AuditRecord(ACTION, "service_account", None, None, None, reason=refusal.detail)
            await services.denials.record(services.database, context, audited, "refused", origin)
        raise
    return await accounts.of_key(services.database, key, context.now, PageWindow(after, ACCOUNTS_MAX))


def _key(subject: str) -> bytes:
    text = subject.removeprefix(KEY_PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        key = b""
    if not subject.startswith(KEY_PREFIX) or len(key) != ED25519_KEY_BYTES:
        raise refused(f"iss and sub must both be `{KEY_PREFIX}` and the public key in base64url")
    return key
