"""The scope of a command: a project, a tenant, or the platform.

An option decides. Without one it is the narrowest scope of the context in which the noun exists (its project, then
its tenant), and without a context the caller's own: the only project of a service account, the tenant of a user, the
platform for its own users. Tenants and projects are given by id or by slug; an id has an underscore, a slug does not.
"""

from collections.abc import Sequence
from typing import Any

import click

from mooring_cli.failures import NoSuchName, is_answer
from mooring_cli.invocation import Invocation, plain_call
from mooring_cli.name_matching import is_whole_id, match
from mooring_cli.noun_table import NOUNS
from mooring_cli.nouns import CommandEndpoint, Noun, Verb

PAGE_MAX = 500
NAME_FIELDS = ("slug", "name", "email", "version", "digest")
NAMED_BY = {"entitlement": ("app_slug",), "attachment": ("account_name",), "webhook": ("url",), "statement": ("month",)}
"""The fields with the names of nouns that have other ones: a project has one entitlement for each app."""
SINGULARS = {"group": "allocation group", "source": "artifact source"}
"""The nouns of path parameters that are shorter than their nouns."""
DIGEST_LENGTH = len("sha256:") + 64


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
        self.whole_names = False  # for commands that remove something
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
        rows = self.projects_or_tenants("project")
        exact = [each for each in rows if each["slug"] == name]
        if not exact and (own := self._own_project(name)) is not None:
            return own
        if len(exact) > 1:
            raise click.UsageError(f"{name!r} is the name of {len(exact)} projects; give an id")
        return str(self._match(rows, name, ("slug",), "project")["id"])

    def projects_or_tenants(self, noun: str) -> list[dict[str, Any]]:
        """The projects or the tenants that the caller can see."""
        if noun == "tenant" and (home := self.whoami()["tenant_id"]) is not None:
            return [self._invocation.call("get_tenant", {"tenant_id": home})]
        return list(self._invocation.client.pages(plain_call(f"list_{noun}s", query={"limit": 500})))

    def _match(self, rows: list[dict[str, Any]], value: str, fields: Sequence[str], noun: str) -> dict[str, Any]:
        return match(rows, value, fields, noun=noun, whole=self.whole_names)

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
        if name is None and home is not None:
            return str(home)
        if name is None:
            raise click.UsageError("give a tenant: --tenant NAME, or mooring context set --tenant NAME")
        return str(self._match(self.projects_or_tenants("tenant"), name, ("slug",), "tenant")["id"])

    def reference(self, parameter: str, value: str, path: dict[str, str]) -> str:
        """The id of a resource given by name: `service_account_id` by name, `user_id` by e-mail address, `version_id`
        by number, `artifact_id` by digest, `entitlement_id` by its app.

        It is looked up in the scope that `path` names, otherwise in that of the command.
        """
        if is_whole_id(value):
            return value
        if parameter == "membership_id" and "@" in value:
            return self._membership(value, path)
        singular = singular_of(parameter)
        is_like_an_id = "_" in value and "@" not in value
        try:
            rows, fields = self.candidates(parameter, value, path)
        except LookupError:
            return value
        except Exception as error:
            if is_like_an_id and is_answer(error) and error.status in (403, 404):
                return value  # who may not list can still name an id
            raise
        try:
            return str(self._match(rows, value, fields, singular)["id"])
        except NoSuchName:
            if is_like_an_id and not any(str(row.get("id")).startswith(value) for row in rows):
                return value
            raise

    def candidates(
        self, parameter: str, value: str, path: dict[str, str]
    ) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
        """What a value of this parameter may name, and the fields with their names; LookupError if nothing lists it."""
        singular = singular_of(parameter)
        if parameter == "app_id" and "project_id" in path:  # the project may be entitled to the platform's apps too
            listed = self._invocation.client.pages(plain_call("list_catalog", query={"limit": 500}))
            return [{"id": each["app_id"], "slug": each["slug"]} for each in listed], ("slug",)
        listing = _listing(singular, tuple(NOUNS.values()))
        if listing is None:
            raise LookupError(parameter)
        return self._rows(listing, value, path), NAMED_BY.get(singular, NAME_FIELDS)

    def _membership(self, email: str, path: dict[str, str]) -> str:
        """The id of the only membership that a user has here."""
        user = self.reference("user_id", email, {name: path[name] for name in path if name == "tenant_id"})
        rows, _ = self.candidates("membership_id", email, path)
        found = [row for row in rows if row["user_id"] == user]
        if len(found) != 1:
            raise NoSuchName(f"{email!r} has {len(found)} memberships here; give an id")
        return str(found[0]["id"])

    def _rows(self, listing: Verb, value: str, path: dict[str, str]) -> list[dict[str, Any]]:
        """The items of a list; LookupError if the path does not say of what."""
        chosen = ScopeOptions(
            platform=self._acts_at == "platform" and any(not each.scope_parameter for each in listing.endpoints)
        )
        if any(endpoint.scope_parameter in path for endpoint in listing.endpoints if endpoint.scope_parameter):
            chosen = ScopeOptions(path.get("project_id"), None if "project_id" in path else path.get("tenant_id"))
        endpoint, scope = self.choose(listing.endpoints, chosen)
        around = {name: path[name] for name in endpoint.arguments if name in path}
        if len(around) < len(endpoint.arguments):
            raise LookupError(listing.name)
        asked: dict[str, Any] = {"limit": 500} if endpoint.pages else {}
        if len(value) == DIGEST_LENGTH and any(field.path == ("digest",) for field in endpoint.query):
            asked["digest"] = value
        call = plain_call(endpoint.operation, {**scope, **around}, asked)
        return list(self._invocation.client.pages(call))

    def whoami(self) -> dict[str, Any]:
        """The caller; requested once."""
        if self._whoami is None:
            self._whoami = self._invocation.call("get_whoami")
        return self._whoami


def singular_of(parameter: str) -> str:
    """The noun of a parameter: `service_account_id` is of a service account."""
    words = parameter.removesuffix("_id").replace("_", " ")
    return SINGULARS.get(words, words)


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
