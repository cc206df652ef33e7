"""`mooring apps check`: walks the onboarding checklist (docs/checklists/app-onboarding.md) for one app.

The catalog shows some points, the report of the conformance suite (`--report`) and an instance of the app
(`--instance`) show others. What is left needs the adapter's sources or a person, and is listed with the command that
checks it. The exit code is 1 if a point that was checked is missing.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

import click

from mooring_cli import output
from mooring_cli.failures import DONE, USAGE, NoSuchName
from mooring_cli.invocation import Invocation, current, plain_call
from mooring_cli.main import MooringCommand
from mooring_cli.scope import ScopeResolver
from mooring_cli.watch import find

ORDER = ("active", "canary", "staged", "draft", "deprecated")


@dataclass(frozen=True)
class Launched:
    """An instance of the app, with what its launch left behind."""

    instance: dict[str, Any]
    operations: list[dict[str, Any]]
    actors: set[str]  # the kinds of actors of the events with the launch's correlation id
    closing: list[dict[str, Any]]

    @property
    def is_abandoned(self) -> bool:
        """Whether it lives, and no adapter works on it."""
        return self.instance["status"] != "stopped" and not (self.instance.get("claim") or {}).get("held")


@dataclass(frozen=True)
class Onboarding:
    """An app with the version that is judged, and the evidence that was given."""

    app: dict[str, Any]
    manifest: dict[str, Any]
    findings: list[dict[str, Any]]
    artifacts: dict[str, list[dict[str, Any]]]  # by role
    verdicts: dict[str, str] = field(default_factory=dict)  # of each promise, from the suite's report
    launched: Launched | None = None


def _manifest(seen: Onboarding) -> str | None:
    if not seen.findings:
        return None
    first = seen.findings[0]
    return f"{len(seen.findings)} findings, first {first['pointer']}: {first['reason']}"


def _actions(seen: Onboarding) -> str | None:
    return None if seen.manifest.get("required_actions") else "required_actions is empty: an adapter needs some"


def _key(seen: Onboarding) -> str | None:
    if seen.launched is not None and seen.launched.is_abandoned:
        return "no adapter holds the instance"
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


def _correlation(seen: Launched) -> str | None:
    silent = [each for each in ("service_account", "node", "system") if each not in seen.actors]
    if not silent:
        return None
    return f"no event of {', '.join(silent)} has the launch's correlation id {seen.instance['correlation_id']}"


def _steps(seen: Launched) -> str | None:
    bare = [each["kind"] for each in seen.operations if each["status"] == "succeeded" and not each["steps"]]
    return f"an operation succeeded without a step: {', '.join(sorted(set(bare)))}" if bare else None


def _proof(seen: Launched) -> str | None:
    open_ones = [each["member_name"] for each in seen.closing if not (each.get("receipt") or {}).get("receipt_id")]
    return f"ended without a receipt: {', '.join(open_ones)}" if open_ones else None


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
OF_PROMISES: dict[str, tuple[str, ...]] = {
    "promises": (),  # all of them
    "required-actions": ("deploy", "forbidden"),
    "other-projects": ("other_project",),
    "denied": ("forbidden",),
    "foreign-members": ("other_project",),
    "failures": ("task_failure",),
    "upgrade": ("upgrade", "rollback", "interrupted_upgrade"),
    "delete": ("graceful", "decommission"),
    "lost-node": ("node_loss",),
    "replicas": ("released", "crash", "stale_lease"),
}
"""The points that the suite's report shows, with the promises that must not be broken."""
OF_INSTANCE: dict[str, Callable[[Launched], str | None]] = {
    "correlation": _correlation,
    "steps": _steps,
    "neighbours": _proof,
    "delete": _proof,
}
"""The points that an instance shows."""


@click.command(cls=MooringCommand)
@click.argument("app", metavar="APP")
@click.option("--tenant", metavar="NAME", help="The tenant whose app it is. [default: the caller's own]")
@click.option("--report", type=click.File("r", encoding="utf-8"), help="The output of `adapter test -o json`.")
@click.option("--instance", metavar="NAME", help="An instance of the app, to see what its adapter left behind.")
@click.option("--project", metavar="NAME", help="The project of the instance. [default: the context's]")
def check(*, app: str, tenant: str | None, report: IO[str] | None, instance: str | None, project: str | None) -> int:
    """Walk the onboarding checklist for an app: what is ok, what is missing, and what is checked elsewhere.

    The newest version that is offered is judged, or the newest of all. Exits with 1 if something is missing.
    """
    invocation = current()
    resolver = ScopeResolver(invocation)
    tenant_id = resolver.tenant_id(tenant) if tenant or resolver.whoami()["tenant_id"] is not None else None
    seen = replace(
        _read(invocation, tenant_id, app),
        verdicts=_verdicts(report) if report else {},
        launched=_launched(invocation, resolver.project_id(project), instance) if instance else None,
    )
    rows = [_row(key, judge, how, seen) for key, (judge, how) in POINTS.items()]
    output.show(invocation.output, rows, ("point", "result", "missing", "how"))
    return USAGE if any(each["result"] == "missing" for each in rows) else DONE


def _row(key: str, judge: Check | None, how: str, seen: Onboarding) -> dict[str, str]:
    found = [] if judge is None else [judge(seen)]
    if key in OF_PROMISES and seen.verdicts:
        found.append(_broken(seen.verdicts, OF_PROMISES[key]))
    if key in OF_INSTANCE and seen.launched is not None and (key != "delete" or seen.launched.closing):
        found.append(OF_INSTANCE[key](seen.launched))
    if not found:
        return {"point": key, "result": "elsewhere", "missing": "", "how": how}
    missing = "; ".join(each for each in found if each)
    return {"point": key, "result": "missing" if missing else "ok", "missing": missing, "how": how if missing else ""}


def _broken(verdicts: dict[str, str], promises: Sequence[str]) -> str | None:
    """What the suite says against a point: a promise that was broken or never played."""
    wanted = promises or verdicts
    bad = [each for each in wanted if verdicts.get(each) == "broken"]
    if bad:
        return f"the suite found a broken promise: {', '.join(bad)}"
    unseen = [each for each in promises if each not in verdicts]
    return f"the report has no verdict about {', '.join(unseen)}" if unseen else None


def _verdicts(report: IO[str]) -> dict[str, str]:
    try:
        return {str(each["promise"]): str(each["verdict"]) for each in json.load(report)["promises"]}
    except (ValueError, KeyError, TypeError) as error:
        raise click.UsageError("--report: not the output of `mooring adapter test -o json`") from error


def _launched(invocation: Invocation, project_id: str, named: str) -> Launched:
    path = find(invocation, project_id, named)
    instance = invocation.call("get_instance", path)
    of_launch = {"correlation_id": instance["correlation_id"], "limit": 500}
    events = invocation.client.pages(plain_call("list_project_events", {"project_id": project_id}, of_launch))
    return Launched(
        instance,
        list(invocation.client.pages(plain_call("list_operations", path, {"limit": 500}))),
        {str(each["actor_kind"]) for each in events},
        list(invocation.client.pages(plain_call("list_closing_records", path, {"limit": 500}))),
    )


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
