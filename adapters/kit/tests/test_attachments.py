"""Attachments in the view of an instance, and as the simulated platform plays them."""

from datetime import timedelta
from typing import Any

from adapters.kit.tests.sample_views import NOW, operation, view
from mooring_adapter import Attachment
from mooring_adapter.conformance import platform_rules
from mooring_adapter.conformance.fake_records import FakeAccount, FakeInstance, FakeOperation
from mooring_adapter.conformance.fake_store import FakeStore
from mooring_adapter.instance_view import InstanceView, read_view

MANIFEST: dict[str, Any] = {
    "app": "shared",
    "version": "1.0.0",
    "artifacts": {},
    "components": [{"key": "head", "max_count": 1}],
    "lifecycle": {"delete": {"data": "removed", "graceful_seconds": 30}},
}


def test_an_operation_says_for_which_attachment_it_is() -> None:
    attachment = {"id": "att_1", "project_id": "prj_2", "account_name": "p-research"}
    asked = operation("action", request={"attachment": attachment, "action": "queue.submit", "input": {}})
    assert asked.attachment == Attachment(id="att_1", project_id="prj_2", account_name="p-research")
    assert operation("action", request={"action": "queue.submit"}).attachment is None


def test_the_work_of_an_attached_project_has_the_end_of_its_account_behind_it() -> None:
    detach = operation("detach", deadline_at=NOW + timedelta(seconds=90))
    assert view(under=detach, manifest=MANIFEST).quiet_until(detach) == NOW + timedelta(seconds=60)


def played() -> tuple[FakeStore, FakeInstance]:
    """A simulated platform with one instance that runs."""
    store = FakeStore()
    account = FakeAccount("sva_1", "prj_1", "key", "public", ("shared",))
    instance = store.create(account, MANIFEST, {"head": 0}, {}, "cluster")
    instance.status = "running"
    instance.operations.clear()
    return store, instance


def seen(store: FakeStore, instance: FakeInstance) -> InstanceView:
    """The instance as an adapter reads it."""
    return read_view(instance.plain(store.now()), store.now())


def end(store: FakeStore, instance: FakeInstance, made: FakeOperation, outcome: str) -> None:
    """The adapter's end of it."""
    made.status, made.started_at = "running", store.now()
    failure = {"code": "not_quiet", "detail": "job 3 runs"}
    platform_rules.finish(instance, made, {"outcome": outcome, "failure": failure}, store.now())


def test_the_simulated_platform_attaches_and_detaches() -> None:
    store, instance = played()
    assert (seen(store, instance).attachments, seen(store, instance).instance.control_plane_scope) == ([], "project")
    attach = store.attach(instance, "p-research")
    (there,) = seen(store, instance).attachments
    assert (there.status, there.account_name) == ("requested", "p-research")
    end(store, instance, attach, "succeeded")
    assert [each.status for each in seen(store, instance).attachments] == ["active"]
    detach = store.detach(instance, there.id, cancel_work=True, seconds=60)
    (open_,) = seen(store, instance).operations
    assert (open_.kind, open_.request["cancel_work"]) == ("detach", True)
    end(store, instance, detach, "failed")
    assert [each.status for each in seen(store, instance).attachments] == ["detaching"]
    end(store, instance, store.detach(instance, there.id, cancel_work=True, seconds=0), "succeeded")
    assert (seen(store, instance).attachments, instance.attachments[there.id]["status"]) == ([], "detached")


def test_an_attach_that_fails_is_refused() -> None:
    store, instance = played()
    end(store, instance, store.attach(instance, "p-research"), "failed")
    assert [each["status"] for each in instance.attachments.values()] == ["refused"]
