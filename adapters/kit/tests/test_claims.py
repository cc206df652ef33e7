"""The claims of the simulated platform: a process that is gone claims nothing, however late its poll arrives."""

import sys
import threading
from typing import Any

from adapters.kit.tests.test_suite_can_fail import BROKEN_ADAPTER, MANIFEST, PATIENCE_SECONDS
from mooring_adapter.conformance.fake_api import ApiRequest, ApiResponse, FakeApi
from mooring_adapter.conformance.fake_records import FakeAccount
from mooring_adapter.conformance.fake_store import FakeStore
from mooring_adapter.conformance.simulated_platform import SimulatedPlatform
from mooring_adapter.conformance.suite import read_profile


def test_a_poll_that_comes_in_behind_the_kill_of_its_sender_claims_nothing() -> None:
    profile = read_profile(MANIFEST, {"patience_seconds": PATIENCE_SECONDS})
    platform = SimulatedPlatform((sys.executable, str(BROKEN_ADAPTER), "nothing"), profile)
    late, is_killed = threading.Event(), threading.Event()
    answered: list[int] = []

    def on_its_way(asked: ApiRequest, number: int) -> None:
        if asked.path.endswith("/claims") and asked.body["held"]:
            late.set()
            is_killed.wait(PATIENCE_SECONDS)

    def over(asked: ApiRequest, number: int, answer: ApiResponse) -> ApiResponse:
        if asked.path.endswith("/claims") and asked.body["held"]:
            with platform.store.changing():
                answered.append(answer.status)
        return answer

    try:
        platform.faults.before, platform.faults.after = on_its_way, over
        instance_id = platform.create_instance("abandoned")
        platform.start_adapter()
        assert late.wait(PATIENCE_SECONDS)
        platform.kill_adapter()
        is_killed.set()
        platform.wait_for("an answer that nobody hears", lambda: answered)
        assert platform.instance(instance_id).held_by is None
    finally:
        is_killed.set()
        platform.close()


def test_a_poll_that_was_sent_before_the_release_renews_nothing() -> None:
    store = FakeStore()
    contract = FakeApi(store, tokens={"token": ("sva_1", float("inf"))})
    store.accounts["sva_1"] = FakeAccount("sva_1", "prj_1", "key", "public", ("broken",))
    instance = store.create(store.accounts["sva_1"], MANIFEST, {"worker": 1}, {}, "handed-over")

    def asked(what: str, **body: object) -> dict[str, Any]:
        given = {"holder": "first", **({"free": 10} if what == "claims" else {}), **body}
        return contract.answer(ApiRequest("POST", f"/api/v1/runtime/{what}", {}, given, "", "token")).body

    (claim,) = asked("claims")["claims"]
    asked("releases", held=[claim])
    late = asked("claims", held=[claim])
    assert (late["claims"], late["lost"], instance.claim.holder) == ([], [claim], None)
    (again,) = asked("claims")["claims"]  # a process that continues is answered
    assert again["fence"] > claim["fence"]
