"""`mooring audit`: who did what, or was refused; and the export and verification of its hash chain."""

import json
import re
import sys
from collections.abc import Iterator
from typing import IO, Any

import click

from mooring_cli import failures, output
from mooring_cli.columns import OF_NOUN
from mooring_cli.invocation import current, plain_call
from mooring_cli.main import MooringGroup
from mooring_cli.nouns import CommandEndpoint
from mooring_cli.scope import PAGE_MAX, ScopeOptions, ScopeResolver, scope_options

AUDITS = (
    CommandEndpoint("list_project_audit", "project", "project_id"),
    CommandEndpoint("list_tenant_audit", "tenant", "tenant_id"),
    CommandEndpoint("list_platform_audit", "platform", ""),
)
CHAINS = (
    CommandEndpoint("get_tenant_audit_chain", "tenant", "tenant_id"),
    CommandEndpoint("get_platform_audit_chain", "platform", ""),
)
LINKS = {"tenant": "list_tenant_audit_links", "platform": "list_platform_audit_links"}
ID = re.compile(r"[a-z]+_[0-9a-z]+|system|anonymous")
LINE_MAX = 4 * 1_048_576


@click.group(cls=MooringGroup, invoke_without_command=True)
@scope_options
@click.option("--correlation", metavar="ID", help="Only entries with this correlation id.")
@click.option(
    "--actor", metavar="NAME", help="Only entries of this user (by e-mail address), service account (by name), or id."
)
@click.option(
    "--actor-kind",
    type=click.Choice(["user", "service_account", "node", "system", "anonymous"]),
    help="Only entries of people (user), or of one kind of machine.",
)
@click.option("--action", metavar="KEY", help="Only entries with this action key.")
@click.option(
    "--outcome", type=click.Choice(["done", "denied", "hidden", "refused"]), help="Only entries with this outcome."
)
@click.option("--subject", metavar="ID", help="Only entries about what has this id.")
@click.option("--since", metavar="TIME", help="Only entries of this time and later, as 2026-11-18T08:00:00Z.")
@click.option("--until", metavar="TIME", help="Only entries before this time.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=50, help="Show at most this many; 0 for all. [default: 50]"
)
@click.pass_context
def audit(
    ctx: click.Context,
    *,
    project: str | None,
    tenant: str | None,
    platform: bool,
    correlation: str | None,
    actor: str | None,
    actor_kind: str | None,
    action: str | None,
    outcome: str | None,
    subject: str | None,
    since: str | None,
    until: str | None,
    limit: int,
) -> None:
    """Show who did what, or was refused, newest first.

    Without --project, --tenant or --platform it uses the scope of the context, otherwise your own.
    """
    if ctx.invoked_subcommand is not None:
        places = project or tenant or platform
        filters = correlation or actor or actor_kind or action or outcome or subject or since or until
        if places or filters:
            raise click.UsageError(f"options of `{ctx.invoked_subcommand}` come after its name")
        return
    invocation = current()
    resolver = ScopeResolver(invocation)
    endpoint, path = resolver.choose(AUDITS, ScopeOptions(project, tenant, platform))
    query = {
        "correlation_id": correlation,
        "actor_id": _actor_id(resolver, actor, path),
        "actor_kind": actor_kind,
        "action": action,
        "outcome": outcome,
        "subject_id": subject,
        "since": since,
        "until": until,
        "limit": min(limit or PAGE_MAX, PAGE_MAX),
    }
    rows = list(invocation.client.pages(plain_call(endpoint.operation, path, query), most=limit or None))
    if not rows and invocation.output == "table":
        output.note("No audit entries.")
        return
    output.show(invocation.output, rows, OF_NOUN["audit entry"], wide=invocation.wide)


def _actor_id(resolver: ScopeResolver, actor: str | None, path: dict[str, str]) -> str | None:
    if actor is None or ID.fullmatch(actor):
        return actor
    return resolver.reference("user_id" if "@" in actor else "service_account_id", actor, path)


class AuditChain:
    """The chain of a tenant or of the platform, as the server has it."""

    def __init__(self, chosen: ScopeOptions) -> None:
        endpoint, self._path = ScopeResolver(current()).choose(CHAINS, chosen)
        self._links = LINKS[endpoint.scope]
        self.state: dict[str, Any] = current().call(endpoint.operation, self._path)

    @property
    def first(self) -> int:
        """The position after which rows are stored."""
        return 0 if self.state["checkpoint"] is None else int(self.state["checkpoint"]["position"])

    @property
    def last(self) -> int:
        return self.first if self.state["head"] is None else int(self.state["head"]["position"])

    def header(self, after: int) -> dict[str, Any]:
        """The first line of an export that begins after a position."""
        from mooring_sdk.audit_chain import FIRST_PREVIOUS, KIND

        checkpoint = self.state["checkpoint"]
        if after < self.first:
            raise click.UsageError(
                f"rows up to position {self.first} were deleted by retention; use --after {self.first}"
            )
        if after > self.last:
            raise click.UsageError(f"the chain ends at position {self.last}")
        if checkpoint is not None and after == self.first:
            link = checkpoint["link"]
        else:
            link = FIRST_PREVIOUS if after == 0 else next(self._pages(after - 1, after))["link"]
        return {
            "kind": KIND,
            "version": 1,
            "chain": self.state["chain"],
            "after": after,
            "after_link": link,
            "checkpoint": checkpoint,
            "keys": self.state["keys"],
        }

    def links(self, after: int) -> Iterator[dict[str, Any]]:
        """The links after a position, up to the head as it was at the beginning."""
        return self._pages(after, self.last)

    def _pages(self, after: int, last: int) -> Iterator[dict[str, Any]]:
        while after < last:
            query = {"after": after, "limit": min(PAGE_MAX, last - after)}
            found = current().call(self._links, self._path, query=query)["items"]
            if not found:
                return
            yield from found
            after = int(found[-1]["position"])


def chain_options(command: Any) -> Any:
    """Add --tenant and --platform: a project has no chain of its own."""
    command = click.option("--platform", is_flag=True, help="Use the platform's own chain.")(command)
    return click.option("--tenant", metavar="NAME", help="Use the chain of this tenant, by id or slug.")(command)


@audit.command()
@chain_options
@click.option("--format", "form", type=click.Choice(["ndjson"]), default="ndjson", help="One JSON document per line.")
@click.option("--after", type=click.IntRange(min=0), help="Continue after this position of an earlier export.")
def export(*, tenant: str | None, platform: bool, form: str, after: int | None) -> None:
    """Print the chained audit rows with their hashes, oldest first, for an auditor.

    The first line names the chain and its keys. To continue an export, give the last position with --after and append;
    `mooring audit verify --file` checks the result without a platform.
    """
    chain = AuditChain(ScopeOptions(None, tenant, platform))
    start = chain.first if after is None else after
    _line(chain.header(start))
    for each in chain.links(start):
        _line(each)


@audit.command()
@chain_options
@click.option("--file", "path", type=click.File("r", encoding="utf-8"), help="Verify this export; - is stdin.")
@click.option("--public-key", metavar="BASE64", help="Accept only a chain of the platform that has this key.")
def verify(*, tenant: str | None, platform: bool, path: IO[str] | None, public_key: str | None) -> int:
    """Recompute the hash chain, and show that it is whole or where it is broken first.

    Without --file it reads the rows from the server and computes every hash here. The exit code is 1 when the chain is
    broken.
    """
    from mooring_sdk import AuditChainVerifier, ChainBroken

    verifier = AuditChainVerifier(public_key)
    waiting = 0
    try:
        if path is not None:
            _verify_file(verifier, path)
        else:
            chain = AuditChain(ScopeOptions(None, tenant, platform))
            verifier.begin(chain.header(chain.first))
            for each in chain.links(chain.first):
                verifier.take(each)
            waiting = int(chain.state["waiting_rows"])
            _compare(chain, verifier.position)
        verified = verifier.end()
        if verified.signed != verified.position:
            raise ChainBroken(f"position {verified.position}: the end of the chain is not signed")
    except ChainBroken as broken:
        raise click.ClickException(f"BROKEN: {broken}") from broken
    result = {"chain": verified.chain, "rows": verified.rows, "position": verified.position, "link": verified.link}
    if current().output != "table":
        output.show(current().output, {**result, "whole": True, "waiting_rows": waiting})
    else:
        click.echo(f"{verified.chain}: {verified.rows} rows, chain whole")
        click.echo(f"  position {verified.position}, link {verified.link}")
        if waiting:
            click.echo(f"  {waiting} newer rows are not chained yet")
    return failures.DONE


def _compare(chain: AuditChain, position: int) -> None:
    """Whether the chain covers every stored row; one that was put in later has no link."""
    from mooring_sdk import ChainBroken

    if position != chain.last:
        raise ChainBroken(f"position {position + 1} is missing; the chain should end at {chain.last}")
    unknown = int(chain.state["stored_rows"]) - int(chain.state["waiting_rows"]) - (chain.last - chain.first)
    if unknown:
        raise ChainBroken(f"the trail has {abs(unknown)} rows {'more' if unknown > 0 else 'less'} than its chain")


def _verify_file(verifier: Any, file: IO[str]) -> None:
    from mooring_sdk import ChainBroken
    from mooring_sdk.audit_chain import KIND

    begun = False
    for number, line in enumerate(iter(lambda: file.readline(LINE_MAX), ""), 1):
        try:
            each = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ChainBroken(f"line {number} is not JSON: {error}") from error
        if isinstance(each, dict) and each.get("kind") == KIND:
            verifier.begin(each)
            begun = True
        elif not begun:
            raise ChainBroken(f"line {number}: an export begins with its header")
        else:
            verifier.take(each)
    if not begun:
        raise ChainBroken("the file is empty")


def _line(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")
