"""Keys that sign tasks: how one follows another."""

import pytest

from mooring.core.identity.platform_key import KEYS_MAX, NextKey, PlatformKey, announcement, audience_of, rotate_key
from mooring.core.kernel.decision import Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.secret import Sealed
from server.tests.support.decision_context import NOW, context

CURRENT = PlatformKey("key_1", b"k" * 32, None, None, 4, NOW)
SEALED = Sealed("sec_1", None, "task_signing", "m", b"w", b"c")
FOLLOWING = NextKey("key_2", b"n" * 32, SEALED, b"s" * 64)


def test_the_next_key_is_put_into_use_with_the_signature_of_the_last() -> None:
    decision = rotate_key(context(), CURRENT, FOLLOWING, 1)
    retired, secret, made = decision.writes
    assert retired == Update("platform_key", "key_1", 4, {"retired_at": NOW})
    assert isinstance(secret, Insert)
    assert isinstance(made, Insert)
    assert (made.row["signed_by"], made.row["signature"], made.row["secret_id"]) == ("key_1", b"s" * 64, "sec_1")
    assert decision.events[0].data == {"key_id": "key_2", "signed_by": "key_1"}


def test_a_chain_is_not_endless() -> None:
    with pytest.raises(Refusal) as refused:
        rotate_key(context(), CURRENT, FOLLOWING, KEYS_MAX)
    assert refused.value.code is Code.LIMIT_REACHED


def test_what_a_key_signs_and_how_tasks_name_the_platform_are_written_in_the_contract() -> None:
    assert announcement("key_2", b"\xff" * 32) == b"mooring-key-v1\nkey_2\n" + b"_" * 42 + b"8"
    assert audience_of("key_1") == "mooring:key_1"
