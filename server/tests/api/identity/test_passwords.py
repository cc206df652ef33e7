"""What a password may be, and how long a one-time code lives."""

from dataclasses import replace
from datetime import timedelta

import pytest

from mooring.settings import SettingRefused, Settings, read_settings
from server.tests.conftest import PASSWORD, World, running_platform
from server.tests.support.later_clock import ShiftedClock

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

WEAK = {
    "too short": ("x9$Lq2vB7nQ", "at least 12 characters"),
    "a common password": ("1qaz2wsx3edc", "common"),
    "a common password with a number": ("password1234", "common"),
    "a common password in disguise": ("P@ssw0rd1234", "common"),
    "a common password twice": ("letmeinletmein", "Repeats"),
    "a row of the keyboard": ("qwertyuiop12", "common"),
    "a sequence": ("abcdefghijkl", "Sequences"),
    "digits": ("123456789012", "common"),
    "one character": ("a" * 200, "Repeats"),
    "the local part of the e-mail address": ("x9$Lq-VERA-2vB7n", "must not contain the part of your e-mail address"),
    "their own name with a number": ("vermeulen-2026", "too easy to guess"),
}


async def test_a_password_that_is_easy_to_guess_is_refused_and_the_code_stays_valid(world: World) -> None:
    acme = await world.tenant("acme")
    user = {"email": "vera@acme.example", "display_name": "Vera Vermeulen"}
    made = await world.client(acme.token).post(f"/api/v1/tenants/{acme.id}/users", json=user)
    offered = {"tenant": "acme", "email": user["email"], "one_time_code": made.json()["one_time_code"]}
    for name, (password, said) in WEAK.items():
        answer = await world.client().post("/api/v1/sign-in", json=offered | {"new_password": password})
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), name
        assert answer.json()["details"]["path"] == "new_password", name
        assert said in answer.json()["detail"], (name, answer.json()["detail"])
        assert password not in answer.text, name
    strong = await world.client().post("/api/v1/sign-in", json=offered | {"new_password": PASSWORD})
    assert strong.status_code == 200
    vera = world.client(strong.json()["token"])
    for name, (password, said) in WEAK.items():
        change = {"current_password": PASSWORD, "new_password": password}
        answer = await vera.post("/api/v1/whoami/password", json=change)
        assert (answer.status_code, said in answer.json()["detail"]) == (422, True), name


async def test_whether_a_password_is_weak_is_not_estimated_for_strangers_or_without_a_limit(settings: Settings) -> None:
    async with running_platform(replace(settings, sign_in_limit_per_minute=0.05)) as running:
        world = World(running, running.client())
        body = {"email": "admin@mooring.local", "new_password": "password1234"}
        stranger = await world.client().post("/api/v1/sign-in", json=body | {"one_time_code": "mrg1_wrong"})
        assert stranger.status_code == 401
        owner = [
            (await world.client().post("/api/v1/sign-in", json=body | {"one_time_code": running.code})).status_code
            for _ in range(6)
        ]
        assert owner == [422] * 4 + [429] * 2
        await world.close()


async def test_a_one_time_code_expires_after_a_day_and_the_refusal_says_what_to_do(world: World) -> None:
    acme = await world.tenant("acme")
    user = {"email": "vera@acme.example", "display_name": "Vera"}
    made = await world.client(acme.token).post(f"/api/v1/tenants/{acme.id}/users", json=user)
    offered = {"tenant": "acme", "email": user["email"], "new_password": PASSWORD}
    right = offered | {"one_time_code": made.json()["one_time_code"]}
    services = world.running.platform.services
    object.__setattr__(services, "clock", ShiftedClock(timedelta(hours=24, minutes=1)))
    late = await world.client().post("/api/v1/sign-in", json=right)
    assert (late.status_code, late.json()["code"]) == (401, "sign_in_refused")
    assert late.json()["details"] == {"reason": "one_time_code_expired"}
    assert "mooring users reset" in late.json()["detail"]
    guess = await world.client().post("/api/v1/sign-in", json=offered | {"one_time_code": "mrg1_wrong"})
    assert "expired" not in guess.json()["detail"]
    assert guess.json()["details"] == {}
    object.__setattr__(services, "clock", ShiftedClock(timedelta(hours=23)))
    assert (await world.client().post("/api/v1/sign-in", json=right)).status_code == 200


def test_the_lifetime_of_one_time_codes_is_a_setting_within_bounds() -> None:
    assert read_settings({"MOORING_ONE_TIME_CODE_HOURS": "0.5"}).one_time_code_lifetime == timedelta(minutes=30)
    for wrong in ("0", "721"):
        with pytest.raises(SettingRefused, match="ONE_TIME_CODE_HOURS"):
            read_settings({"MOORING_ONE_TIME_CODE_HOURS": wrong})
