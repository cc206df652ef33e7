"""The scope of a command: a project, a tenant, or the platform.

An option decides. Without one it is the narrowest scope of the context in which the noun exists (its project, then
its tenant), and without a context the caller's own: the only project of a service account, the tenant of a user, the
platform for its own users. Tenants and projects are given by id or by slug; an id has an underscore, a slug does not.
"""

from collections.abc import Sequence
from typing import Any

import click

from mooring_cli.failures import NoSuchName
from mooring_cli.invocation import Invocation, plain_call
from mooring_cli.noun_table import NOUNS
from mooring_cli.nouns import CommandEndpoint, Noun, Verb

PAGE_MAX = 500
NAME_FIELDS = ("slug", "name", "email", "version", "digest")
NAMED_BY_APP = ("entitlement",)  # a project has one for each app


def scope_options(command: Any) -> Any:
    """Add --project, --tenant and --platform to a command."""
    for option in (
        click.option("--platform", is_flag=True, help="Use the platform's own scope."),
        click.option("--tenant", metavar="NAME", help="Use this tenant, by id or slug."),
        click.option("--project", metavar="NAME", help="Use this project, by id or slug."),
    ):
        command = option(command)
    return command


class ScopeOptions:
    """The values of the options for the scope."""

    def __init__(self, project: str | None = None, tenant: str | None = None, platform: bool = False) -> None:
        named = [
            name for name, value in (("--project", project), ("--tenant", tenant), ("--platform", platform)) if value
        ]
        if len(named) > 1:
            raise click.UsageError(f"{' and '.join(named)}: give only one of them")
        self.project, self.tenant, self.platform = project, tenant, platform


class ScopeResolver:
    """Finds the scope of a command, with as few requests as possible."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._whoami: dict[str, Any] | None = None
        self._acts_at: str | None = None  # the scope of the command itself

    def choose(
        self, endpoints: tuple[CommandEndpoint, ...], chosen: ScopeOptions
    ) -> tuple[CommandEndpoint, dict[str, str]]:
        """The endpoint for the scope, and the path parameter that names it."""
        by_scope = {endpoint.scope: endpoint for endpoint in endpoints}
        scope = self._scope(by_scope, chosen)
        endpoint = by_scope[scope]
        self._acts_at = self._acts_at or scope
        if not endpoint.scope_parameter:
            return endpoint, {}
        if endpoint.scope_parameter == "project_id":
            return endpoint, {"project_id": self.project_id(chosen.project)}
        return endpoint, {"tenant_id": self.tenant_id(chosen.tenant)}

    def _scope(self, by_scope: dict[str, CommandEndpoint], chosen: ScopeOptions) -> str:
        for scope, given in (("project", chosen.project), ("tenant", chosen.tenant), ("platform", chosen.platform)):
            if given:
                if scope not in by_scope:
                    raise click.UsageError(
                        f"--{scope} does not apply to this command; use {' or '.join(f'--{each}' for each in by_scope)}"
                    )
                return scope
        if len(by_scope) == 1:
            return next(iter(by_scope))
        if "project" in by_scope and self._invocation.project:
            return "project"
        if "tenant" in by_scope and (self._invocation.tenant or self._invocation.project):
            return "tenant"
        return self._home(by_scope)

    def _home(self, by_scope: dict[str, CommandEndpoint]) -> str:
        caller = self.whoami()
        if "project" in by_scope and caller["kind"] == "service_account":
            return "project"
        if "tenant" in by_scope and caller["tenant_id"] is not None:
            return "tenant"
        if "project" in by_scope and caller["tenant_id"] is not None:
            return "project"  # which one is asked for next; the platform's own view is not for tenants
        if "platform" in by_scope:
            return "platform"
        raise click.UsageError(f"give a scope: {' or '.join(f'--{scope}' for scope in by_scope)}")

    def project_id(self, named: str | None = None) -> str:
        """The id of the given project, of the context's, or of the only one of a service account."""
        name = named or self._invocation.project
        if name is None:
            caller = self.whoami()
            if caller["kind"] == "service_account" and len(caller["project_actions"]) == 1:
                return str(next(iter(caller["project_actions"])))
            raise click.UsageError("give a project: --project NAME, or mooring context set --project NAME")
        if "_" in name:
            return name
        found = [
            each
            for each in self._invocation.client.pages(plain_call("list_projects", query={"limit": 500}))
            if each["slug"] == name
        ]
        if not found and (own := self._own_project(name)) is not None:
            return own
        if not found:
            raise NoSuchName(f"there is no project {name!r} that you can see; mooring projects list shows them")
        if len(found) > 1:
            raise click.UsageError(f"{name!r} is the name of {len(found)} projects; give an id")
        return str(found[0]["id"])

    def _own_project(self, slug: str) -> str | None:
        """The id of a service account's own project, which it can name without `project.read`."""
        slugs = self.whoami().get("project_slugs") or {}
        return next((str(project) for project, each in slugs.items() if each == slug), None)

    def tenant_id(self, named: str | None = None) -> str:
        """The id of the given tenant, of the context's, or of the caller's own."""
        name = named or self._invocation.tenant
        if name is not None and "_" in name:
            return name
        home = self.whoami()["tenant_id"]
        if home is not None:
            if name is None or self._invocation.call("get_tenant", {"tenant_id": home})["slug"] == name:
                return str(home)
            raise NoSuchName(f"there is no tenant {name!r} that you can see")
        if name is None:
            raise click.UsageError("give a tenant: --tenant NAME, or mooring context set --tenant NAME")
        for each in self._invocation.client.pages(plain_call("list_tenants", query={"limit": 500})):
            if each["slug"] == name:
                return str(each["id"])
        raise NoSuchName(f"there is no tenant {name!r}; mooring tenants list shows them")

    def reference(self, parameter: str, value: str, path: dict[str, str]) -> str:
        """The id of a resource given by name: `service_account_id` by name, `user_id` by e-mail address, `version_id`
        by number, `artifact_id` by digest, `entitlement_id` by its app.

        It is looked up in the scope that `path` names, otherwise in that of the command.
        """
        singular = parameter.removesuffix("_id").replace("_", " ")
        listing = _listing(singular, tuple(NOUNS.values()))
        if ("_" in value and "@" not in value) or listing is None:
            return value
        if parameter == "app_id" and "project_id" in path:  # the project may be entitled to the platform's apps too
            found = [
                {"id": each["app_id"]}
                for each in self._invocation.client.pages(plain_call("list_catalog", query={"limit": 500}))
                if each["slug"] == value
            ]
        else:
            found = self._named(listing, value, path, ("app_slug",) if singular in NAMED_BY_APP else NAME_FIELDS)
        if len(found) != 1:
            many = (
                f"{value!r} is the name of {len(found)} of them; give an id"
                if found
                else f"there is no {singular} {value!r} here"
            )
            raise NoSuchName(many)
        return str(found[0]["id"])

    def _named(self, listing: Verb, value: str, path: dict[str, str], fields: Sequence[str]) -> list[dict[str, Any]]:
        """The items of a list that have this name in one of the fields."""
        chosen = ScopeOptions(
            platform=self._acts_at == "platform" and any(not each.scope_parameter for each in listing.endpoints)
        )
        if any(endpoint.scope_parameter in path for endpoint in listing.endpoints if endpoint.scope_parameter):
            chosen = ScopeOptions(path.get("project_id"), None if "project_id" in path else path.get("tenant_id"))
        endpoint, scope = self.choose(listing.endpoints, chosen)
        around = {name: path[name] for name in endpoint.arguments if name in path}
        asked: dict[str, Any] = {"limit": 500} if endpoint.pages else {}
        if value.startswith("sha256:") and any(field.path == ("digest",) for field in endpoint.query):
            asked["digest"] = value
        call = plain_call(endpoint.operation, {**scope, **around}, asked)
        return [each for each in self._invocation.client.pages(call) if value in [each.get(field) for field in fields]]

    def whoami(self) -> dict[str, Any]:
        """The caller; requested once."""
        if self._whoami is None:
            self._whoami = self._invocation.call("get_whoami")
        return self._whoami


def _listing(singular: str, nouns: tuple[Noun, ...]) -> Verb | None:
    """The verb that lists a noun, at any depth."""
    for noun in nouns:
        if noun.singular == singular:
            found = noun.verb("list") if "list" in noun.operations else None
        else:
            found = _listing(singular, noun.below)
        if found is not None:
            return found
    return None
