"""Typed ids: `<prefix>_<26 characters>`, sortable by creation time.

The 26 characters are 128 bits in Crockford's base 32, lower case: 48 bits of milliseconds, then 80 random bits. Ids
sort by time as text (the database compares them with collation "C"). The prefix names the noun, so an id in the wrong
field is refused before anything is looked up. Time and randomness are arguments: the core has neither, and gets ids
from outside through a `Minter`.
"""

from enum import StrEnum
from typing import Protocol

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
BODY_LENGTH = 26
ENTROPY_BYTES = 10
_VALID = frozenset(ALPHABET)
_PAIRS = tuple(first + second for first in ALPHABET for second in ALPHABET)
"""Encodes ten bits at a time, because each request makes several ids."""


class Prefix(StrEnum):
    """The noun that an id names. A prefix is never reused for another noun."""

    ALLOCATION = "alc"
    ALLOCATION_GROUP = "alg"
    APP = "app"
    APP_VERSION = "ver"
    APP_VERSION_CHECK = "vck"
    ARTIFACT = "art"
    ARTIFACT_CHECK = "chk"
    ARTIFACT_EVIDENCE = "evd"
    ARTIFACT_HOLD = "hld"
    ARTIFACT_SOURCE = "src"
    ARTIFACT_UPLOAD = "upl"
    ATTACHMENT = "att"
    AUDIT = "aud"
    BREAK_GLASS = "bgl"
    BUDGET = "bud"
    CLOSING_RECORD = "clo"
    CORRELATION = "cor"
    ENROLMENT_TOKEN = "enr"
    ENTITLEMENT = "ent"
    EVENT = "evt"
    EXEC_RECORDING = "rec"
    IDENTITY_PROVIDER = "idp"
    INSTANCE = "ins"
    KEY = "key"
    LATE_USAGE = "lat"
    LEDGER_TRANSACTION = "ltx"
    MEMBER = "mem"
    MEMBERSHIP = "mbr"
    METER = "mtr"
    METER_BATCH = "mbt"
    METER_READING = "mrd"
    NODE = "nod"
    OPERATION = "op"
    PASSKEY = "pky"
    POLICY = "pol"
    PREPAID_ACCOUNT = "pre"
    PRICE = "prc"
    PROJECT = "prj"
    PROJECT_NETWORK = "net"
    PROJECT_SECRET = "pse"
    QUOTA = "quo"
    RATED_USAGE = "rtu"
    RECEIPT = "rcp"
    RUNTIME_SECRET = "rsc"
    SECRET = "sec"
    SECRET_GRANT = "grt"
    SERVICE_ACCOUNT = "sa"
    SIGNER_KEY = "sgk"
    SKU = "sku"
    SKU_PRICE = "skp"
    SLOT = "slt"
    STATEMENT = "stm"
    TASK = "tsk"
    TENANT = "ten"
    TOKEN = "tok"
    USAGE_RECORD = "use"
    USER = "usr"
    USER_IDENTITY = "uid"
    VISIT = "vis"
    WEBHOOK = "whk"
    WORKLOAD_ADAPTER = "wla"


class Minter(Protocol):
    """Makes ids, outside of the core, where there are a clock and a random source."""

    def __call__(self, prefix: Prefix) -> str: ...


def encode(prefix: Prefix, milliseconds: int, entropy: bytes) -> str:
    """The id made at `milliseconds` since 1970 with these ten random bytes."""
    if len(entropy) != ENTROPY_BYTES:
        raise ValueError(f"an id needs {ENTROPY_BYTES} random bytes, not {len(entropy)}")
    if not 0 <= milliseconds < 1 << 48:
        raise ValueError("the time does not fit into 48 bits of milliseconds")
    moment, first, second, pairs = milliseconds, int.from_bytes(entropy[:5]), int.from_bytes(entropy[5:]), _PAIRS
    return (
        f"{prefix.value}_{pairs[moment >> 40]}{pairs[moment >> 30 & 1023]}{pairs[moment >> 20 & 1023]}"
        f"{pairs[moment >> 10 & 1023]}{pairs[moment & 1023]}{pairs[first >> 30]}{pairs[first >> 20 & 1023]}"
        f"{pairs[first >> 10 & 1023]}{pairs[first & 1023]}{pairs[second >> 30]}{pairs[second >> 20 & 1023]}"
        f"{pairs[second >> 10 & 1023]}{pairs[second & 1023]}"
    )


def is_id(text: str, prefix: Prefix) -> bool:
    """Whether `text` is a well-formed id of this noun."""
    head, _, body = text.rpartition("_")
    return head == prefix and len(body) == BODY_LENGTH and body[0] <= "7" and _VALID.issuperset(body)


def made_at_milliseconds(text: str) -> int:
    """When the id was made, in milliseconds since 1970."""
    number = 0
    for character in text.rpartition("_")[2]:
        number = (number << 5) | ALPHABET.index(character)
    return number >> 80


def pattern(prefix: Prefix) -> str:
    """The regular expression of this noun's ids, for the published schemas."""
    return f"^{prefix}_[0-7][0-9a-hjkmnp-tv-z]{{25}}$"
