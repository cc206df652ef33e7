"""Passwords are hashed slowly, a bounded number at once; tokens are long and shown once."""

import asyncio
import hashlib
import re
import threading
from collections.abc import Iterator

import pytest
from argon2 import PasswordHasher, Type

from mooring.core.identity.token import TOKEN_PREFIX, TokenKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.passwords import WAITING_MAX, Passwords, digest, new_one_time_code, new_token
from tests.support.waiting import turns

QUICK = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


class CountingHasher(PasswordHasher):
    """Counts what it is asked, and can be held up."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.verified = 0
        self.at_once = 0
        self.most_at_once = 0
        self.go_on = threading.Event()
        self.go_on.set()
        self._lock = threading.Lock()

    def verify(self, hash: str | bytes, password: str | bytes) -> bool:  # type: ignore[override]
        with self._lock:
            self.verified += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self.go_on.wait(120)
            return bool(super().verify(hash, password))
        finally:
            with self._lock:
                self.at_once -= 1


@pytest.fixture
def passwords() -> Iterator[Passwords]:
    passwords = Passwords(hasher=QUICK)
    yield passwords
    passwords.close()


async def test_a_password_fits_its_own_hash_and_no_other(passwords: Passwords) -> None:
    stored = await passwords.hash("correct horse battery")

    assert await passwords.verify(stored, "correct horse battery")
    assert not await passwords.verify(stored, "correct horse batterz")
    assert not await passwords.verify(stored, "")
    assert "correct" not in stored


async def test_the_same_password_never_has_the_same_hash(passwords: Passwords) -> None:
    assert await passwords.hash("correct horse battery") != await passwords.hash("correct horse battery")


def test_the_hash_is_argon2id_with_the_librarys_present_cost() -> None:
    hasher = PasswordHasher()

    assert hasher.type is Type.ID
    assert hasher.memory_cost >= 19_456  # KiB; what is recommended at the least for a time cost of 2
    assert hasher.time_cost >= 2


@pytest.mark.parametrize("stored", ["", "plain", "$argon2id$v=19$m=8,t=1,p=1$broken", "$2b$12$abcdefghijklmnopqrstuv"])
async def test_a_hash_that_is_broken_fits_nothing(stored: str, passwords: Passwords) -> None:
    assert not await passwords.verify(stored, "correct horse battery")


async def test_a_user_who_does_not_exist_takes_as_much_work() -> None:
    hasher = CountingHasher()
    passwords = Passwords(hasher=hasher)
    try:
        assert not await passwords.verify(None, "correct horse battery")
        assert hasher.verified == 1
    finally:
        passwords.close()


async def test_a_storm_of_sign_ins_is_bounded_and_the_rest_must_wait() -> None:
    hasher = CountingHasher()
    passwords = Passwords(threads=2, hasher=hasher)
    stored = await passwords.hash("correct horse battery")
    hasher.go_on.clear()
    storm = [asyncio.create_task(passwords.verify(stored, "correct horse battery")) for _ in range(WAITING_MAX)]
    try:
        await turns()  # each of them is at its wait now
        with pytest.raises(Refusal) as refused:
            await passwords.verify(stored, "correct horse battery")
        assert (refused.value.code, refused.value.details) == (Code.RATE_LIMITED, {"retry_after_seconds": 5})
    finally:
        hasher.go_on.set()
        answers = await asyncio.gather(*storm)
        passwords.close()

    assert answers == [True] * WAITING_MAX
    assert hasher.most_at_once <= 2
    assert hasher.at_once == 0


async def test_room_is_made_again_by_callers_who_are_done_or_gone() -> None:
    hasher = CountingHasher()
    passwords = Passwords(threads=1, hasher=hasher)
    hasher.go_on.clear()
    stored = QUICK.hash("correct horse battery")
    storm = [asyncio.create_task(passwords.verify(stored, "x")) for _ in range(WAITING_MAX)]
    await turns()
    for task in storm:
        task.cancel()
    await asyncio.gather(*storm, return_exceptions=True)
    hasher.go_on.set()
    try:
        assert await passwords.verify(stored, "correct horse battery")
    finally:
        passwords.close()


def test_a_token_begins_with_its_kind_and_is_long_enough_not_to_be_guessed() -> None:
    for kind in TokenKind:
        token = new_token(kind)
        assert token.startswith(TOKEN_PREFIX[kind])
        assert len(token) == len(TOKEN_PREFIX[kind]) + 43  # 256 bits in base 64
        assert new_token(kind) != token
    assert re.fullmatch(r"mrg1_[A-Za-z0-9_-]{32}", new_one_time_code())
    assert new_one_time_code() != new_one_time_code()


def test_of_a_token_only_its_sha_256_is_kept() -> None:
    token = new_token(TokenKind.SESSION)

    assert digest(token) == hashlib.sha256(token.encode()).digest()
    assert digest(token) != digest(token + " ")
