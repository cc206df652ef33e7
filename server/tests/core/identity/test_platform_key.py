"""Keys that sign tasks: how one follows another."""

from dataclasses import replace

import pytest

from mooring.core.identity.platform_key import (
    KEYS_MAX,
    KeyChain,
    NextKey,
    PlatformKey,
    Vouched,
    announcement,
    audience_of,
    install_key,
    prepare_key,
    root_statement,
    rotate_key,
)
from mooring.core.kernel.decision import Insert, Remove, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.secret import Sealed
from server.tests.support.decision_context import NOW, context

CURRENT = PlatformKey("key_1", b"k" * 32, None, None, 4, NOW)
SEALED = Sealed("sec_1", None, "task_signing", "m", b"w", b"c")
FOLLOWING = NextKey("key_2", b"n" * 32, SEALED, b"s" * 64)


def test_the_next_key_is_put_into_use_with_the_signature_of_the_last() -> None:
    decision = rotate_key(context(), CURRENT, FOLLOWING, 1)
    retired, secret, made = decision.writes
    assert retired == Update("platform_key", "key_1", 4, {"retired_at": NOW, "secret_id": None})
    assert isinstance(secret, Insert)
    assert isinstance(made, Insert)
    assert (made.row["signed_by"], made.row["signature"], made.row["secret_id"]) == ("key_1", b"s" * 64, "sec_1")
    assert decision.events[0].data == {"key_id": "key_2", "signed_by": "key_1", "epoch": None}


def test_a_chain_is_not_endless() -> None:
    with pytest.raises(Refusal) as refused:
        rotate_key(context(), CURRENT, FOLLOWING, KEYS_MAX)
    assert refused.value.code is Code.LIMIT_REACHED


def test_what_a_key_signs_and_how_tasks_name_the_platform_are_written_in_the_contract() -> None:
    assert announcement("key_2", b"\xff" * 32) == b"mooring-key-v1\nkey_2\n" + b"_" * 42 + b"8"
    assert audience_of("key_1") == "mooring:key_1"


def test_an_epoch_grows_with_the_time_and_with_the_one_before() -> None:
    seconds = int(NOW.timestamp())
    for before, expected in ((0, seconds), (seconds + 5, seconds + 6)):
        chain = KeyChain(CURRENT, None, 1, before)
        assert prepare_key(context(), chain, FOLLOWING).result.epoch == expected
    waiting = replace(CURRENT, id="key_0", revision=7)
    replaced = prepare_key(context(), KeyChain(CURRENT, waiting, 1, 0), FOLLOWING).writes[0]
    assert replaced == Remove("platform_key", "key_0", 7)


def test_only_the_prepared_key_is_installed_and_it_retires_the_current_one() -> None:
    waiting = replace(CURRENT, id="key_2", revision=0, epoch=9)
    chain, vouched = KeyChain(CURRENT, waiting, 1, 0), Vouched(b"s" * 64, b"r" * 64)
    retired, installed = install_key(context(), chain, "key_2", vouched).writes
    assert retired == Update("platform_key", "key_1", 4, {"retired_at": NOW, "secret_id": None})
    assert isinstance(installed, Update)
    assert (installed.set["signed_by"], installed.set["root_signature"]) == ("key_1", b"r" * 64)
    for other in (chain, replace(chain, prepared=None)):
        with pytest.raises(Refusal) as refused:
            install_key(context(), other, "key_3", vouched)
        assert refused.value.code is Code.NOT_FOUND
    assert root_statement("mooring:key_1", 9, "key_2", b"\xff" * 32) == (
        b"mooring-root-v1\nmooring:key_1\n9\nkey_2\n" + b"_" * 42 + b"8"
    )
