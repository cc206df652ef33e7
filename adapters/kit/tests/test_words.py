"""What the kit reports: failures with the codes of operations, log lines with the labels of the work."""

import io
import json
import logging
from datetime import timedelta

from adapters.kit.tests.sample_views import NOW, member, operation, task, view
from mooring_adapter import failures
from mooring_adapter.conformance.request_shape import failure_codes
from mooring_adapter.instance_view import Allocation, read_view
from mooring_adapter.logs import JsonLines, labels_of, log_labels
from mooring_adapter.platform_client import traced
from mooring_adapter.program import read_options
from mooring_sdk import MooringError


def test_every_failure_of_a_task_has_a_code_of_operations() -> None:
    assert set(failures.OF_TASK.values()) <= failure_codes()
    assert set(failures.OF_REFUSAL.values()) <= failure_codes()


def test_an_expired_task_on_an_unreachable_node_is_a_lost_node() -> None:
    away = member("a", "joining", allocation=Allocation(id="al", node_reachable=False))
    assert failures.of_task(task("a1", "expired"), away).code == "node_lost"
    assert failures.of_task(task("a1", "expired"), member("a", "joining")).code == "step_timeout"


def test_a_non_retryable_refusal_has_a_code_of_operations() -> None:
    assert failures.of_refusal(MooringError("no", code="artifact_revoked")).code == "artifact_refused"
    assert failures.of_refusal(MooringError("no", code="validation_failed")).code == "adapter_error"


def test_a_log_line_carries_the_labels_of_the_work_and_no_token() -> None:
    out = io.StringIO()
    log = logging.getLogger("test.adapter")
    log.addHandler(JsonLines(out))
    log.propagate = False
    labels = labels_of(view(), operation(correlation_id="c1", trace_id="t1"))
    with log_labels(**labels):
        log.warning("refused Bearer abcdefghijklmnop", extra={"code": "conflict"})
    line = json.loads(out.getvalue())
    assert (line["correlation_id"], line["trace_id"], line["app_instance_id"]) == ("c1", "t1", "instance")
    assert (line["level"], line["code"], line["app_slug"]) == ("warning", "conflict", "app")
    assert "abcdefghijklmnop" not in out.getvalue()


def test_each_request_for_an_operation_carries_its_correlation_and_its_trace() -> None:
    options = traced(operation(correlation_id="c1", trace_id="a" * 32))
    assert options.correlation_id == "c1"
    assert options.traceparent is not None
    assert options.traceparent.startswith(f"00-{'a' * 32}-")


def test_an_unknown_field_is_ignored() -> None:
    plain = {"instance": {"id": "i", "colour": "blue"}, "now": "2026-03-01T12:00:00Z", "members": []}
    assert read_view(plain, view().now or plain).instance.id == "i"  # type: ignore[arg-type]


def test_each_process_has_a_name_of_its_own() -> None:
    words = ["--url", "http://127.0.0.1:1", "--key-file", "key.pem", "--holder", "echo"]
    first, second = read_options(words), read_options(words)
    assert first.holder != second.holder
    assert first.holder.startswith("echo-")
    assert len(first.holder) <= 64


def test_a_removed_members_work_may_last_until_only_the_end_of_the_app_is_left() -> None:
    until = NOW + timedelta(seconds=100)
    manifest = {"lifecycle": {"delete": {"graceful_seconds": 30}}}
    removing = operation("remove", phase_deadline_at=until)
    assert view(manifest=manifest).quiet_until(removing) == until - timedelta(seconds=30)
    assert view().quiet_until(removing) == until - timedelta(seconds=60)
    assert view().quiet_until(operation("drain", deadline_at=until)) == until
    assert view().quiet_until(operation("remove")) is None
