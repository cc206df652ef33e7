"""A journal that cannot be used says what to do, and is not changed."""

import sqlite3
from pathlib import Path

import pytest

from agent.tests.support.fake_platform import ALLOCATION, FakePlatform
from mooring_agent.__main__ import archive_journal, main
from mooring_agent.control_plane.messages import TaskResult
from mooring_agent.control_plane.trust import Identity, store_identity
from mooring_agent.tasks.journal import Journal, JournalUnreadable
from mooring_agent.tasks.receipts import ChainedReceipt, ChainLink


def test_a_journal_of_a_newer_agent_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    Journal(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    before = path.read_bytes()
    with pytest.raises(JournalUnreadable, match="version 7, but this agent writes version 1"):
        Journal(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("place", ["head", "middle"])
def test_a_damaged_journal_says_what_to_do(tmp_path: Path, place: str) -> None:
    path, fake_platform = tmp_path / "journal.sqlite", FakePlatform()
    journal = Journal(path)
    for _ in range(200):
        journal.record_intent(fake_platform.task("process.run", {"argv": ["x" * 500]}), 1.0)
    journal.close()
    data = bytearray(path.read_bytes())
    start = 0 if place == "head" else len(data) // 2
    data[start : start + 8_192] = b"\xff" * 8_192
    path.write_bytes(data)
    with pytest.raises(JournalUnreadable, match=r"is damaged .*`mooring-agent enrol --again`"):
        Journal(path)


def test_the_command_ends_with_that_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_identity(tmp_path, Identity("http://127.0.0.1:9", "nod_01hzzzzzzzzzzzzzzzzzzzzzzz", "mooring:x", ()))
    (tmp_path / "journal.sqlite").write_bytes(b"this is no database at all, but a letter" * 200)
    assert main(["run", "--host", "process", "--state-dir", str(tmp_path)]) == 1
    assert "is damaged" in capsys.readouterr().err


def test_owed_results_come_in_the_order_of_their_receipts(tmp_path: Path) -> None:
    journal, fake_platform = Journal(tmp_path / "journal.sqlite"), FakePlatform()
    first, second = fake_platform.task("sandbox.destroy"), fake_platform.task("sandbox.destroy")
    for task in (first, second):
        journal.record_intent(task, 1.0)
    journal.record_result(
        second.task_id, TaskResult("succeeded"), 2.0, ChainedReceipt(ChainLink(1, "0" * 64), b"{}", b"")
    )
    journal.record_result(
        first.task_id, TaskResult("succeeded"), 2.0, ChainedReceipt(ChainLink(2, "0" * 64), b"{}", b"")
    )
    assert [entry.task_id for entry in journal.undelivered()] == [second.task_id, first.task_id]
    journal.close()


def test_a_machine_that_enrols_again_keeps_its_old_journal_beside_a_new_chain(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    task = FakePlatform().task("sandbox.destroy")
    journal.close_owner(ALLOCATION, 1.0)
    journal.record_intent(task, 1.0)
    journal.record_result(
        task.task_id, TaskResult("succeeded"), 2.0, ChainedReceipt(ChainLink(1, "0" * 64), b"{}", b"")
    )
    journal.close()
    archive_journal(tmp_path, "nod_old")
    assert [path.name for path in tmp_path.iterdir()] == ["journal-nod_old.sqlite"]
    fresh = Journal(tmp_path / "journal.sqlite")
    assert (fresh.link().sequence, fresh.undelivered()) == (1, [])
    fresh.close()
