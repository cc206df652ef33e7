"""The catalogue is closed, whole, and says what to do."""

import re

from mooring.api.problem import STATUS, problem
from mooring.core.kernel.errors import CATALOGUE, Code, Refusal
from mooring.core.kernel.event_types import MEANING, EventType
from tests.support.rows import every_row


@every_row("code", Code)
def test_every_error_says_what_it_means_and_what_to_do(code: Code) -> None:
    entry = CATALOGUE[code]

    assert re.fullmatch("[a-z]+(_[a-z]+)*", code.value)
    assert code.name.lower() == code.value
    assert entry.title[0].isupper()
    assert not entry.title.endswith(".")
    for sentence in (entry.meaning, entry.remedy):
        assert sentence[0].isupper()
        assert sentence.endswith(".")


def test_every_error_has_a_title_of_its_own_and_one_http_status() -> None:
    assert len({entry.title for entry in CATALOGUE.values()}) == len(Code)
    assert set(CATALOGUE) == set(STATUS) == set(Code)
    assert all(400 <= status <= 599 for status in STATUS.values())


def test_what_may_be_retried_is_a_matter_of_the_moment() -> None:
    retryable = {code for code in Code if CATALOGUE[code].retryable}

    moment = {Code.CONFLICT, Code.INTERNAL, Code.RATE_LIMITED, Code.TEMPORARILY_UNAVAILABLE}
    of_sources = {Code.SOURCE_STALLED, Code.SOURCE_TOO_SLOW, Code.SOURCE_UNREACHABLE}
    of_instances = {Code.CIRCUIT_OPEN, Code.NO_CAPACITY, Code.OPERATION_IN_PROGRESS, Code.TOO_MANY_OPEN_TASKS}
    assert retryable == moment | of_sources | of_instances | {Code.CHECK_RUNNING}
    assert all(STATUS[code] >= 500 or STATUS[code] in (409, 429) for code in retryable)


def test_a_refusal_carries_its_details_and_not_the_callers_dictionary() -> None:
    details: dict[str, object] = {"limit": 3}
    refusal = Refusal(Code.LIMIT_REACHED, "three at most", details)
    details["limit"] = 4

    assert (refusal.code, refusal.detail, refusal.details) == (Code.LIMIT_REACHED, "three at most", {"limit": 3})
    assert not refusal.retryable
    assert Refusal(Code.CONFLICT, "x").retryable
    assert str(refusal) == "limit_reached: three at most"


def test_a_problem_document_says_all_of_it() -> None:
    shown = problem(Refusal(Code.RATE_LIMITED, "try again in 3 s", {"retry_after_seconds": 3}), "cor_1")

    entry = CATALOGUE[Code.RATE_LIMITED]
    assert (shown.type, shown.title, shown.status) == ("urn:mooring:error:rate_limited", entry.title, 429)
    assert (shown.detail, shown.remedy, shown.retryable) == ("try again in 3 s", entry.remedy, True)
    assert (shown.correlation_id, shown.details) == ("cor_1", {"retry_after_seconds": 3})


@every_row("type_", EventType)
def test_every_event_is_named_by_family_noun_and_what_became_true(type_: EventType) -> None:
    assert re.fullmatch(r"[a-z_]+\.[a-z_]+\.[a-z_]+", type_.value)
    assert MEANING[type_].endswith(".")
