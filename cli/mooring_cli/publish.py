"""`mooring publish`: put one version of an app into a tenant's catalog and promote it, also from CI.

It goes through the public API with the rights of the caller; a service account with `catalog.publish` is enough. What
is there already is left alone, so the same command can be run again after any failure, and does nothing when all is
done.

Exit codes, as everywhere: 0 published (or nothing to do) · 1 the bundle has mistakes, or the server refused a value of
it · 2 the server or the network failed: run it again · 3 not signed in or not allowed · 4 there is no such app · 5 a
conflict: the version exists with other content, or may not be promoted.
"""

import base64
import time
from pathlib import Path
from typing import Any

import click

from mooring_cli import output
from mooring_cli.bundle import Bundle, read_bundle
from mooring_cli.failures import NoSuchName, OtherContent, is_answer
from mooring_cli.install import MOVES, REACHED
from mooring_cli.invocation import Invocation, current, plain_call
from mooring_cli.main import MooringCommand
from mooring_cli.scope import ScopeResolver

TARGETS = ("draft", "staged", "canary", "active")
CHECK_SECONDS_MAX = 900.0
CORRECTABLE = "required_actions"


@click.command(cls=MooringCommand)
@click.argument("bundle", type=click.Path())
@click.option("--promote", type=click.Choice(TARGETS), default="draft", show_default=True, help="How far it goes.")
@click.option(
    "--canary-percentage", type=float, default=10.0, show_default=True, help="The share of a canary's projects."
)
@click.option("--tenant", metavar="NAME", help="The tenant, by id or slug. [default: the caller's own]")
@click.option("--reason", default="published from a bundle", show_default=True, help="Recorded in the audit trail.")
def publish(*, bundle: str, promote: str, canary_percentage: float, tenant: str | None, reason: str) -> None:
    """Publish a version of an app from a bundle (a directory or a packed file), and promote it.

    It can be run again at any time: what is there already is left alone. Exit codes: 0 done, 1 the bundle has mistakes,
    2 the server or the network failed (run it again), 3 not allowed, 4 no such app, 5 the version has other content or
    may not be promoted.
    """
    invocation = current()
    read = read_bundle(Path(bundle))
    publisher = BundlePublisher(invocation, ScopeResolver(invocation).tenant_id(tenant), reason)
    version = publisher.publish(read, promote, canary_percentage)
    shown = {"app": read.slug, "version": read.version, "status": version["status"], "version_id": version["id"]}
    output.show(invocation.output, shown | {"changed": publisher.changed})


class BundlePublisher:
    """The catalog of a tenant, with the rights of a publisher."""

    def __init__(self, invocation: Invocation, tenant_id: str, reason: str) -> None:
        self._invocation = invocation
        self._place = {"tenant_id": tenant_id}
        self._reason = reason
        self.changed = False

    def publish(self, bundle: Bundle, target: str, percentage: float) -> dict[str, Any]:
        """Publish what is missing, up to the target; the version as it is then."""
        app_id = self._app(bundle.slug)
        known = self._known(app_id, bundle.manifest)
        artifacts = [self._upload(role, content) for role, content in bundle.blobs.items()]
        digests = bundle.manifest["artifacts"]
        artifacts += [self._registered(digests[role], location) for role, location in bundle.references.items()]
        version = self._version(app_id, bundle.manifest, known)
        path = {"app_id": app_id, "version_id": str(version["id"])}
        for number, move in enumerate(MOVES[: TARGETS.index(target)]):
            for each in artifacts:
                if REACHED.get(each["promotion"], len(MOVES)) <= number:
                    self._move("artifact", {"artifact_id": each["id"]}, {"move": move}, each["digest"])
            if REACHED.get(version["status"], len(MOVES)) <= number:
                share = {"canary_percentage": percentage} if move == "canary" else {}
                version = self._move("version", path, {"move": move, **share}, f"version {bundle.version}")
        return version

    def _app(self, slug: str) -> str:
        found = [str(each["id"]) for each in self._pages("apps", {}, {}) if each["slug"] == slug]
        if not found:
            raise NoSuchName(
                f"there is no app {slug!r} in this tenant; an admin registers it: mooring apps create --slug {slug}"
            )
        return found[0]

    def _upload(self, role: str, content: bytes) -> dict[str, Any]:
        body = {"content_base64": base64.b64encode(content).decode("ascii")}
        made: dict[str, Any] = self._call("upload_tenant_artifact", {}, body)
        self._note(f"{role}: {made['digest']}")
        return made

    def _registered(self, digest: str, location: str) -> dict[str, Any]:
        known = [each for each in self._pages("artifacts", {}, {"digest": digest}) if each["location"] == location]
        if known:
            return known[0]
        kind = "oci" if location.startswith("oci://") else "blob"
        made: dict[str, Any] = self._checked(
            "register_tenant_artifact", {}, {"kind": kind, "location": location, "digest": digest}
        )
        self._did(f"registered {location}")
        return made

    def _known(self, app_id: str, manifest: dict[str, Any]) -> dict[str, Any] | None:
        """The version if it is there; refused if its content is another that can no longer change."""
        listed = self._pages("versions", {"app_id": app_id}, {})
        found = next((each for each in listed if each["version"] == manifest["version"]), None)
        if found is None:
            return None
        others = _differences(found["manifest"], manifest)
        if not others or found["status"] == "draft" or (found["status"] == "staged" and others == [CORRECTABLE]):
            return found
        raise OtherContent(
            f"version {manifest['version']} is {found['status']} with another {', '.join(others)}: "
            "raise the version in the manifest"
        )

    def _version(self, app_id: str, manifest: dict[str, Any], known: dict[str, Any] | None) -> dict[str, Any]:
        path = {"app_id": app_id}
        if known is None:
            made: dict[str, Any] = self._call("create_tenant_version", path, {"manifest": manifest})
            self._did(f"published version {made['version']} as a draft")
            return made
        others = _differences(known["manifest"], manifest)
        if not others:
            return known
        one = {**path, "version_id": known["id"]}
        body = {"manifest": manifest, "revision": known["revision"]}
        changed: dict[str, Any] = self._call("replace_tenant_version_manifest", one, body)
        self._did(f"changed {', '.join(others)} of version {changed['version']}")
        return changed

    def _move(self, noun: str, path: dict[str, str], body: dict[str, Any], what: str) -> dict[str, Any]:
        moved = self._checked(f"promote_tenant_{noun}", path, {"reason": self._reason, **body})
        self._did(f"{body['move']}: {what}")
        return moved

    def _checked(self, operation: str, path: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        """Call an operation that may wait for a check; the server holds each request for some seconds."""
        until = time.monotonic() + CHECK_SECONDS_MAX
        while True:
            try:
                answer: dict[str, Any] = self._call(operation, path, body)
                return answer
            except Exception as error:
                if not is_answer(error) or error.code != "check_running" or time.monotonic() > until:
                    raise
                self._note("waiting for the check")

    def _call(self, operation: str, path: dict[str, str], body: dict[str, Any]) -> Any:
        return self._invocation.call(operation, {**self._place, **path}, None, body)

    def _pages(self, nouns: str, path: dict[str, str], query: dict[str, Any]) -> list[dict[str, Any]]:
        call = plain_call(f"list_tenant_{nouns}", {**self._place, **path}, {"limit": 500, **query})
        return list(self._invocation.client.pages(call))

    def _did(self, text: str) -> None:
        self.changed = True
        self._note(text)

    def _note(self, text: str) -> None:
        if self._invocation.output == "table":
            output.note(text)


def _differences(stored: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    return sorted(key for key in stored.keys() | wanted.keys() if stored.get(key) != wanted.get(key))
