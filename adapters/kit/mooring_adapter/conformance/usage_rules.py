"""The rules of secrets and usage: what is stored once under its name, and when another value is refused."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from mooring_adapter.conformance.fake_records import FakeInstance
from mooring_adapter.conformance.platform_rules import RequestRefused, conflict, invalid, not_found

SECRET_PURPOSES: Final = ("app_access", "member_secret", "cluster_key")


def check_secret(body: Mapping[str, Any]) -> None:
    """Refuse a purpose that is not an adapter's, and a secret with two values or none."""
    if body["purpose"] not in SECRET_PURPOSES:
        raise invalid(f"purpose: one of {', '.join(SECRET_PURPOSES)}")
    if (body.get("value") is None) == (body.get("generate_bytes") is None):
        raise invalid("value: exactly one of `value` and `generate_bytes` is required")


def store_secret(instance: FakeInstance, body: Mapping[str, Any]) -> dict[str, Any]:
    """Store a secret for the instance, or return the one that has the name."""
    name, purpose = str(body["name"]), str(body["purpose"])
    created = name not in instance.secrets
    if instance.secrets.get(name, purpose) != purpose:
        raise RequestRefused(409, "name_taken", "the instance already has a secret of this name for another purpose")
    if created and instance.status in ("stopping", "stopped"):
        raise conflict(f"the instance is {instance.status}: it takes no new secrets")
    instance.secrets[name] = purpose
    return {"name": name, "purpose": purpose, "created": created}


def store_usage(instance: FakeInstance, records: list[dict[str, Any]], now: datetime) -> dict[str, int]:
    """Store the new records; one that is stored with other values refuses the whole request."""
    if len({each["record_id"] for each in records}) != len(records):
        raise invalid("records: each record_id once")
    fresh: dict[str, dict[str, Any]] = {}
    for each in records:
        before = instance.usage.get(each["record_id"])
        if before is None:
            _check_usage(instance, each, now)
            fresh[each["record_id"]] = dict(each)
        elif _values(before) != _values(each):
            raise conflict(f"the record {each['record_id']} is stored with different values")
    instance.usage |= fresh
    return {"stored": len(fresh), "repeated": len(records) - len(fresh)}


def store_readings(instance: FakeInstance, readings: list[dict[str, Any]]) -> dict[str, int]:
    """Store the last reading of each epoch; a value that falls refuses the whole request."""
    units = {each["unit"] for each in instance.manifest.get("usage_units", ())}
    last, stored = dict(instance.readings), 0
    for each in readings:
        if each["unit"] not in units:
            raise invalid(f"readings: the unit must be one of the manifest's: {', '.join(sorted(units)) or 'none'}")
        before = last.get((each["series"], each["epoch"]))
        if before is not None and each["seq"] <= before["seq"]:
            continue
        if before is not None and each["value"] < before["value"]:
            raise conflict(f"the value of {each['series']} falls inside its epoch")
        if before is None or each["value"] > before["value"]:
            last[each["series"], each["epoch"]] = dict(each)
            stored += 1
    instance.readings = last
    return {"stored": stored, "unchanged": len(readings) - stored}


def _check_usage(instance: FakeInstance, record: Mapping[str, Any], now: datetime) -> None:
    units = {each["unit"] for each in instance.manifest.get("usage_units", ())}
    if record["unit"] not in units:
        raise invalid(f"records: the unit must be one of the manifest's: {', '.join(sorted(units)) or 'none'}")
    started_at, ended_at = _moment(record["started_at"]), _moment(record["ended_at"])
    if ended_at < started_at:
        raise invalid("records: `ended_at` must not be before `started_at`")
    if started_at < instance.created_at.replace(microsecond=0) or ended_at > now:
        raise invalid("records: an interval between the instance's creation and now")
    attached = record.get("attached_project_id")
    if attached in (None, instance.project_id):
        return
    if instance.control_plane_scope == "project":
        raise invalid("records: the instance serves its own project alone")
    if attached not in {each["project_id"] for each in instance.attachments.values()}:
        raise not_found("records: no such project is attached, or was")


def _values(record: Mapping[str, Any]) -> tuple[Any, ...]:
    moments = _moment(record["started_at"]), _moment(record["ended_at"])
    return (record["unit"], *moments, float(record["quantity"]), record.get("attached_project_id"))


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise invalid(f"records: {text!r} is not a time") from error
    if moment.tzinfo is None:
        raise invalid(f"records: {text!r} has no time zone")
    return moment
