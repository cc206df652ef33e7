"""`mooring install`: put an app from a bundle into the catalog, and entitle a project to it.

A bundle is one file: the app's card, the manifest of one version, the locations of its artifacts, and the public key
of its adapter. Everything goes through the API, as an admin would do it by hand. What exists already is left alone,
so an interrupted installation is resumed by the same command.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mooring_cli import output
from mooring_cli.failures import NoSuchName
from mooring_cli.invocation import Invocation, current, plain_call
from mooring_cli.main import MooringCommand
from mooring_cli.scope import ScopeResolver

BUNDLE_VERSION = 1
BYTES_MAX = 1_048_576
MOVES = ("stage", "canary", "activate")
REACHED = {"draft": 0, "staged": 1, "canary": 2, "active": 3}
"""The position of each status along the promotion."""


@click.command(cls=MooringCommand)
@click.argument("bundle", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--tenant", metavar="NAME", help="Use the catalog of this tenant. [default: the platform's, for its admins]"
)
@click.option("--project", metavar="NAME", help="Also entitle this project to it; needs a tenant's admin.")
@click.option("--reason", default="installed from a bundle", show_default=True, help="Recorded in the audit trail.")
def install(*, bundle: str, tenant: str | None, project: str | None, reason: str) -> None:
    """Put the app of a bundle into the catalog: its artifacts, its version, and the key of its adapter.

    A project may launch it once a tenant's admin entitles it: with --project, or with `mooring entitlements create`.
    """
    invocation = current()
    read = read_bundle(Path(bundle))
    resolver = ScopeResolver(invocation)
    tenant_id = resolver.tenant_id(tenant) if tenant or resolver.whoami()["tenant_id"] is not None else None
    catalog = CatalogInstaller(invocation, tenant_id, reason)
    slug = read["app"]["slug"]
    app_id = catalog.find_app(slug) if project and tenant_id and catalog.is_offered(slug) else catalog.install(read)
    if project is not None:
        entitle(invocation, resolver.project_id(project), app_id, read, reason)
    output.show(
        invocation.output,
        {"app_id": app_id, "slug": slug, "version": read["manifest"]["version"]},
        ("slug", "version", "app_id"),
    )


def read_bundle(path: Path) -> dict[str, Any]:
    """A bundle, checked as far as the installation needs it."""
    try:
        text = path.read_bytes()
        found = json.loads(text) if len(text) <= BYTES_MAX else None
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("bundle") != BUNDLE_VERSION:
        raise click.ClickException(f"{path} is not a bundle of version {BUNDLE_VERSION}")
    wanted = {"app", "artifacts", "manifest"} - set(found)
    if wanted:
        raise click.ClickException(f"{path} lacks {', '.join(sorted(wanted))}")
    return found


class CatalogInstaller:
    """The catalog of the platform or of a tenant, with the permissions of an admin."""

    def __init__(self, invocation: Invocation, tenant_id: str | None, reason: str) -> None:
        self._invocation = invocation
        self._tier = "platform" if tenant_id is None else "tenant"
        self._place = {} if tenant_id is None else {"tenant_id": tenant_id}
        self._reason = reason

    def install(self, bundle: Mapping[str, Any]) -> str:
        """Install everything that is missing; returns the id of the app."""
        manifest = bundle["manifest"]
        artifacts = [self._artifact(manifest["artifacts"][role], place) for role, place in bundle["artifacts"].items()]
        app_id = self._app(bundle)
        version = self._version(app_id, manifest)
        for number, move in enumerate(MOVES):
            for artifact in artifacts:
                self._moved(
                    "artifact", {"artifact_id": artifact["id"]}, artifact["promotion"], number=number, move=move
                )
            path = {"app_id": app_id, "version_id": version["id"]}
            self._moved("version", path, version["status"], number=number, move=move)
        return app_id

    def is_offered(self, slug: str) -> bool:
        """Whether the app is in the catalog that the caller sees."""
        return any(each["slug"] == slug for each in self._catalog())

    def find_app(self, slug: str) -> str:
        found = [str(each["app_id"]) for each in self._catalog() if each["slug"] == slug]
        if not found:
            raise NoSuchName(f"there is no app {slug!r} in the catalog")
        return found[0]

    def _catalog(self) -> list[dict[str, Any]]:
        return list(self._invocation.client.pages(plain_call("list_catalog", query={"limit": 500})))

    def _artifact(self, digest: str, place: Mapping[str, str]) -> dict[str, Any]:
        known = [each for each in self._pages("artifacts", {"digest": digest}) if each["location"] == place["location"]]
        if known:
            return known[0]
        if place["location"].startswith("file:") and self._tier == "platform":
            patterns = [each["pattern"] for each in self._pages("artifact_sources", {})]
            if not any(_covers(each, place["location"]) for each in patterns):
                body = {"name": "Artifacts of an installed app", "pattern": place["location"]}
                self._call("create", "artifact_source", {}, body)
        body = {"kind": place["kind"], "location": place["location"], "digest": digest}
        made: dict[str, Any] = self._call("register", "artifact", {}, body)
        self._note(f"registered {place['location']}")
        return made

    def _app(self, bundle: Mapping[str, Any]) -> str:
        slug = bundle["app"]["slug"]
        known = [each for each in self._pages("apps", {}) if each["slug"] == slug]
        app_id = str((known[0] if known else self._call("create", "app", {}, dict(bundle["app"])))["id"])
        if bundle.get("adapter_key"):
            body = {"public_key": bundle["adapter_key"]}
            self._call("set", "app_adapter_key", {"app_id": app_id}, body)
        return app_id

    def _version(self, app_id: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        path = {"app_id": app_id}
        known = [each for each in self._pages("versions", {}, path) if each["version"] == manifest["version"]]
        if known:
            return known[0]
        made: dict[str, Any] = self._call("create", "version", path, {"manifest": manifest})
        return made

    def _moved(self, noun: str, path: dict[str, str], status: str, *, number: int, move: str) -> None:
        if REACHED.get(status, len(MOVES)) > number:
            return
        share = {"canary_percentage": 100.0} if move == "canary" and noun == "version" else {}
        self._call("promote", noun, path, {"move": move, "reason": self._reason, **share})
        self._note(f"{noun}: {move}")

    def _call(self, verb: str, noun: str, path: dict[str, str], body: dict[str, Any]) -> Any:
        return self._invocation.call(f"{verb}_{self._tier}_{noun}", {**self._place, **path}, None, body)

    def _pages(self, nouns: str, query: dict[str, Any], path: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        call = plain_call(f"list_{self._tier}_{nouns}", {**self._place, **(path or {})}, {"limit": 500, **query})
        return list(self._invocation.client.pages(call))

    def _note(self, text: str) -> None:
        if self._invocation.output == "table":
            output.note(text)


def _covers(pattern: str, location: str) -> bool:
    return location.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == location


def entitle(invocation: Invocation, project_id: str, app_id: str, bundle: Mapping[str, Any], reason: str) -> None:
    """Entitle a project to the app, with the actions that its manifest asks for."""
    path = {"project_id": project_id}
    known = invocation.client.pages(plain_call("list_entitlements", path, {"limit": 500}))
    if any(each["app_id"] == app_id for each in known):
        return
    agreed = bundle["manifest"].get("required_actions", [])
    body = {"app_id": app_id, "reason": reason, "agreed_actions": agreed}
    invocation.call("create_entitlement", path, None, body)
