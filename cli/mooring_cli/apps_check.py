"""`mooring apps check`: walks the onboarding checklist (docs/checklists/app-onboarding.md) for one app.

What the catalog shows is checked here; the other points need the adapter's sources, a running instance or a person, and
are listed with the command that checks them. The exit code is 1 if a point that was checked is missing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from mooring_cli import output
from mooring_cli.failures import DONE, USAGE, NoSuchName
from mooring_cli.invocation import Invocation, current, plain_call
from mooring_cli.main import MooringCommand
from mooring_cli.scope import ScopeResolver

ORDER = ("active", "canary", "staged", "draft", "deprecated")


@dataclass(frozen=True)
class Onboarding:
    """An app with the version that is judged."""

    app: dict[str, Any]
    manifest: dict[str, Any]
    findings: list[dict[str, Any]]
    artifacts: dict[str, list[dict[str, Any]]]  # by role


def _manifest(seen: Onboarding) -> str | None:
    if not seen.findings:
        return None
    first = seen.findings[0]
    return f"{len(seen.findings)} findings, first {first['pointer']}: {first['reason']}"


def _actions(seen: Onboarding) -> str | None:
    return None if seen.manifest.get("required_actions") else "required_actions is empty: an adapter needs some"


def _key(seen: Onboarding) -> str | None:
    if seen.app.get("adapter_key") or seen.manifest.get("artifact_kind") in ("oci", "launchable"):
        return None  # the platform's workload adapter operates images, with the platform's key
    return "the app has no adapter key"


def _artifacts(seen: Onboarding) -> str | None:
    bad = [role for role, found in seen.artifacts.items() if not any(each["trust"] == "verified" for each in found)]
    if not seen.artifacts:
        return "the manifest names no artifact"
    return f"not registered, or not verified: {', '.join(sorted(bad))}" if bad else None


def _upgrade(seen: Onboarding) -> str | None:
    upgrade = (seen.manifest.get("lifecycle") or {}).get("upgrade") or {}
    return None if upgrade.get("from_versions") else "lifecycle.upgrade names no versions to upgrade from"


def _delete(seen: Onboarding) -> str | None:
    return None if (seen.manifest.get("lifecycle") or {}).get("delete") else "lifecycle.delete is missing"


def _runbook(seen: Onboarding) -> str | None:
    entries = (seen.manifest.get("runbook") or {}).get("entries")
    return None if entries else "the manifest's runbook has no entries"


Check = Callable[[Onboarding], str | None]
POINTS: dict[str, tuple[Check | None, str]] = {
    "contracts": (None, "lint-imports, and the adapter's tests without the server package"),
    "name": (None, "python -m tools.tidy"),
    "manifest": (_manifest, "mooring manifest lint manifest.yaml, then publish again"),
    "promises": (None, "mooring adapter test COMMAND"),
    "required-actions": (_actions, "list what the adapter calls in required_actions; mooring adapter test COMMAND"),
    "key-file": (None, "ps -ef; podman inspect; search the logs for the key"),
    "key-rotation": (_key, "mooring apps set-adapter-key APP, then mooring why INSTANCE"),
    "other-projects": (None, "mooring adapter test COMMAND"),
    "denied": (None, "mooring audit --outcome denied --actor ACCOUNT"),
    "foreign-members": (None, "mooring adapter test COMMAND"),
    "neighbours": (None, "mooring receipts list, after a remove"),
    "correlation": (None, "tests/e2e/test_correlation.py with the app's own bad configuration"),
    "steps": (None, "mooring instances watch INSTANCE; mooring why INSTANCE"),
    "failures": (None, "mooring why INSTANCE after each failure of the test plan"),
    "artifacts": (_artifacts, "mooring artifacts verify DIGEST; mooring artifacts evidence DIGEST says why not"),
    "egress": (None, "a launch in a sandbox without egress"),
    "trust-lost": (None, "mooring artifacts revoke in a trial, then mooring instances members add"),
    "upgrade": (_upgrade, "state lifecycle.upgrade; then mooring instances upgrade and rollback with work running"),
    "delete": (
        _delete,
        "state lifecycle.delete; then mooring instances stop INSTANCE --wait, also without the adapter",
    ),
    "lost-node": (None, "mooring why INSTANCE, then mooring nodes write-off NODE"),
    "usage": (None, "mooring instances usage list INSTANCE against the app's own count"),
    "runbook": (_runbook, "write runbook.entries in the manifest; a person handles a failure with it"),
    "replicas": (None, "kill one of two adapters during a deploy; mooring instances watch INSTANCE"),
    "versions": (None, "mooring version; mooring adapter test COMMAND on the newest platform"),
}
"""Each point of the checklist by its key: how it is checked here, and what mends it or checks it elsewhere."""


@click.command(cls=MooringCommand)
@click.argument("app", metavar="APP")
@click.option("--tenant", metavar="NAME", help="The tenant whose app it is. [default: the caller's own]")
def check(*, app: str, tenant: str | None) -> int:
    """Walk the onboarding checklist for an app: what is ok, what is missing, and what is checked elsewhere.

    The newest version that is offered is judged, or the newest of all. Exits with 1 if something is missing.
    """
    invocation = current()
    resolver = ScopeResolver(invocation)
    tenant_id = resolver.tenant_id(tenant) if tenant or resolver.whoami()["tenant_id"] is not None else None
    seen = _read(invocation, tenant_id, app)
    rows = [_row(key, judge, how, seen) for key, (judge, how) in POINTS.items()]
    output.show(invocation.output, rows, ("point", "result", "missing", "how"))
    return USAGE if any(each["result"] == "missing" for each in rows) else DONE


def _row(key: str, judge: Check | None, how: str, seen: Onboarding) -> dict[str, str]:
    if judge is None:
        return {"point": key, "result": "elsewhere", "missing": "", "how": how}
    missing = judge(seen)
    if missing is None:
        return {"point": key, "result": "ok", "missing": "", "how": ""}
    return {"point": key, "result": "missing", "missing": missing, "how": how}


def _read(invocation: Invocation, tenant_id: str | None, slug: str) -> Onboarding:
    tier = "platform" if tenant_id is None else "tenant"
    place = {} if tenant_id is None else {"tenant_id": tenant_id}

    def pages(nouns: str, path: dict[str, str], query: dict[str, Any]) -> list[dict[str, Any]]:
        call = plain_call(f"list_{tier}_{nouns}", {**place, **path}, {"limit": 500, **query})
        return list(invocation.client.pages(call))

    found = [each for each in pages("apps", {}, {}) if slug in (each["slug"], each["id"])]
    if not found:
        raise NoSuchName(f"there is no app {slug!r} here")
    versions = [each for each in pages("versions", {"app_id": found[0]["id"]}, {}) if each["status"] in ORDER]
    if not versions:
        raise NoSuchName(f"the app {slug!r} has no version yet; mooring publish BUNDLE publishes one")
    judged = min(reversed(versions), key=lambda each: ORDER.index(each["status"]))
    manifest = judged["manifest"]
    linted = invocation.call("lint_manifest", {}, None, {"manifest": manifest, "app_slug": found[0]["slug"]})
    artifacts = {role: pages("artifacts", {}, {"digest": each}) for role, each in manifest.get("artifacts", {}).items()}
    return Onboarding(found[0], manifest, linted["findings"], artifacts)
