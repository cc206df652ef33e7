"""Attachments in the world of an instance, and as the simulated platform plays them."""

from datetime import timedelta
from typing import Any

from adapters.kit.tests.worlds import NOW, operation, world
from mooring_adapter import Attachment
from mooring_adapter.conformance import rules
from mooring_adapter.conformance.book import Book
from mooring_adapter.conformance.records import Account, Instance, Operation
from mooring_adapter.world import World, read_world

MANIFEST: dict[str, Any] = {
    "app": "shared", "version": "1.0.0", "artifacts": {}, "components": [{"key": "head", "max_count": 1}],
    "lifecycle": {"delete": {"data": "removed", "graceful_seconds": 30}},
}  # fmt: skip


def test_an_operation_says_for_which_attachment_it_is() -> None:
    told = {"id": "att_1", "project_id": "prj_2", "account_name": "p-research"}
    asked = operation("action", request={"attachment": told, "action": "queue.submit", "input": {}})
    assert asked.attachment == Attachment(id="att_1", project_id="prj_2", account_name="p-research")
    assert operation("action", request={"action": "queue.submit"}).attachment is None


def test_the_work_of_an_attached_project_has_the_end_of_its_account_behind_it() -> None:
    detach = operation("detach", deadline_at=NOW + timedelta(seconds=90))
    assert world(under=detach, manifest=MANIFEST).quiet_until(detach) == NOW + timedelta(seconds=60)


def played() -> tuple[Book, Instance]:
    """A simulated platform with one instance that runs."""
    book = Book()
    account = Account("sva_1", "prj_1", "key", "public", ("shared",))
    instance = book.create(account, MANIFEST, {"head": 0}, {}, "cluster")
    instance.status = "running"
    instance.operations.clear()
    return book, instance


def seen(book: Book, instance: Instance) -> World:
    """The instance as an adapter reads it."""
    return read_world(instance.plain(book.now()), book.now())


def end(book: Book, instance: Instance, made: Operation, outcome: str) -> None:
    """The adapter's end of it."""
    made.status, made.started_at = "running", book.now()
    failure = {"code": "not_quiet", "detail": "job 3 runs"}
    rules.finish(instance, made, {"outcome": outcome, "failure": failure}, book.now())


def test_the_simulated_platform_attaches_and_detaches() -> None:
    book, instance = played()
    assert (seen(book, instance).attachments, seen(book, instance).instance.control_plane_scope) == ([], "project")
    attach = book.attach(instance, "p-research")
    (there,) = seen(book, instance).attachments
    assert (there.status, there.account_name) == ("requested", "p-research")
    end(book, instance, attach, "succeeded")
    assert [each.status for each in seen(book, instance).attachments] == ["active"]
    detach = book.detach(instance, there.id, cancel_work=True, seconds=60)
    (open_,) = seen(book, instance).operations
    assert (open_.kind, open_.request["cancel_work"]) == ("detach", True)
    end(book, instance, detach, "failed")
    assert [each.status for each in seen(book, instance).attachments] == ["detaching"]
    end(book, instance, book.detach(instance, there.id, cancel_work=True, seconds=0), "succeeded")
    assert (seen(book, instance).attachments, instance.attachments[there.id]["status"]) == ([], "detached")


def test_an_attach_that_fails_is_refused() -> None:
    book, instance = played()
    end(book, instance, book.attach(instance, "p-research"), "failed")
    assert [each["status"] for each in instance.attachments.values()] == ["refused"]
