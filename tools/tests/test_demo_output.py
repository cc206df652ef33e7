"""The cleanup of the demo is not interrupted; a signal that arrives meanwhile is handled afterwards."""

import signal
from collections.abc import Iterator

import pytest

from tests.support.rows import every_row
from tools.demo_output import DemoFailed, undisturbed

ASKS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """As the demo has them: either ends it."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in ASKS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@every_row("number", ASKS)
def test_an_end_that_is_asked_for_meanwhile_comes_when_all_is_removed(number: signal.Signals) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        give_back(number, done)
    assert done == ["removed"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)  # from now on it ends the demo at once again


def test_an_error_that_already_ends_the_demo_is_still_raised() -> None:
    with pytest.raises(DemoFailed, match="no more GPUs"):
        give_back_after_a_failure()
    with pytest.raises(DemoFailed, match="it does not stop"):
        fail_to_give_back()


@undisturbed()
def give_back(number: signal.Signals, done: list[str]) -> None:
    signal.raise_signal(number)
    done.append("removed")


@undisturbed()
def fail_to_give_back() -> None:
    signal.raise_signal(signal.SIGINT)
    raise DemoFailed("it does not stop")


def give_back_after_a_failure() -> None:
    try:
        raise DemoFailed("no more GPUs")
    except DemoFailed:
        give_back(signal.SIGINT, [])
        raise


def test_nobody_asked_and_nothing_comes() -> None:
    with undisturbed():
        pass
