"""One run of the command: its global options, its context and its client.

An option overrides the environment, and that overrides the context. The token of a context is only sent to the
address of that context.
"""

import os
import sys
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mooring_cli import contexts as stored
from mooring_cli.contexts import DEFAULT_NAME, DEFAULT_URL, Context, Contexts

if TYPE_CHECKING:
    from mooring_sdk import CallOptions, Client, Credentials, Exchange

SERVICE_ACCOUNT = "MOORING_SERVICE_ACCOUNT"
KEY_ID = "MOORING_SERVICE_ACCOUNT_KEY_ID"
KEY_FILE = "MOORING_SERVICE_ACCOUNT_KEY_FILE"
PLAIN_HTTP = "MOORING_ALLOW_PLAIN_HTTP"
CA_FILE = "MOORING_CA_FILE"


class NotSignedIn(click.ClickException):
    """There are no credentials for this server."""

    def __init__(self, url: str) -> None:
        super().__init__(f"you are not signed in to {url}; run: mooring login --url {url}")


@dataclass(slots=False)
class Invocation:
    """The state of one run; click passes it to every command."""

    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    output: str = "table"
    wide: bool = False
    no_input: bool = False
    verbose: bool = False
    context_name: str | None = None
    url_option: str | None = None
    ca_file_option: str | None = None
    allow_plain_http: bool = False
    correlation_id: str | None = None
    timeout_seconds: float = 60.0
    retry_attempts: int = 5

    @property
    def contexts_path(self) -> Path:
        return stored.contexts_file(self.environment)

    @cached_property
    def contexts(self) -> Contexts:
        return stored.load(self.contexts_path)

    def save(self, contexts: Contexts) -> None:
        """Store changed contexts."""
        stored.save(self.contexts_path, contexts)
        self.__dict__["contexts"] = contexts

    @property
    def chosen_name(self) -> str | None:
        """The context that the caller gave, or the current one."""
        return self.context_name or self.environment.get("MOORING_CONTEXT") or self.contexts.current

    @property
    def context(self) -> Context:
        """The context to use, as stored."""
        name = self.chosen_name
        if name is None:
            return Context(DEFAULT_NAME)
        found = self.contexts.by_name.get(name)
        if found is None:
            known = ", ".join(sorted(self.contexts.by_name)) or "none"
            raise click.UsageError(f"there is no context {name!r}; available: {known}")
        return found

    @property
    def url(self) -> str:
        given = self.url_option or self.environment.get("MOORING_URL")
        return (given or self.context.url or DEFAULT_URL).rstrip("/")

    @property
    def ca_file(self) -> str | None:
        """The CA certificates to trust instead of the system's; those of a context count only for its server."""
        if self.given_ca_file is not None:
            return self.given_ca_file
        context = self.contexts.by_name.get(self.chosen_name or "")
        return context.ca_file if context is not None and context.url.rstrip("/") == self.url else None

    @property
    def given_ca_file(self) -> str | None:
        """The CA certificates that the option or the environment names."""
        given = self.ca_file_option or self.environment.get(CA_FILE)
        return os.path.abspath(os.path.expanduser(given)) if given else None

    @property
    def allows_plain_http(self) -> bool:
        return self.allow_plain_http or self.environment.get(PLAIN_HTTP) == "1"

    @property
    def tenant(self) -> str | None:
        """The default tenant: MOORING_TENANT or, without it, the tenant of the current context."""
        return self.environment.get("MOORING_TENANT") or self.context.tenant

    @property
    def project(self) -> str | None:
        """The default project: MOORING_PROJECT or, without it, the project of the current context."""
        return self.environment.get("MOORING_PROJECT") or self.context.project

    @property
    def may_ask(self) -> bool:
        """Whether there is a terminal to ask on."""
        return not self.no_input and sys.stdin.isatty()

    def credentials(self) -> "Credentials | None":
        """The credentials of the caller, if there are any."""
        from mooring_sdk import ServiceAccountCredentials, TokenCredentials

        token = self.environment.get("MOORING_TOKEN")
        if token:
            return TokenCredentials(token)
        account = self.environment.get(SERVICE_ACCOUNT)
        if account:
            missing = [name for name in (KEY_ID, KEY_FILE) if not self.environment.get(name)]
            if missing:
                raise click.UsageError(f"{SERVICE_ACCOUNT} is set, so {' and '.join(missing)} must be set too")
            try:
                return ServiceAccountCredentials.from_file(
                    account, self.environment[KEY_ID], self.environment[KEY_FILE]
                )
            except OSError as error:
                raise click.UsageError(f"{KEY_FILE}: {error.strerror}: {error.filename}") from error
        context = self.context
        if context.token is not None and context.url.rstrip("/") == self.url:
            return TokenCredentials(context.token)
        return None

    @cached_property
    def client(self) -> "Client":
        """The client with the credentials of the caller."""
        credentials = self.credentials()
        if credentials is None:
            raise NotSignedIn(self.url)
        return self.client_with(credentials)

    @cached_property
    def public_client(self) -> "Client":
        """A client for operations that need no token."""
        return self.client_with(None)

    def client_with(self, credentials: "Credentials | None") -> "Client":
        from mooring_sdk import Client, ClientSettings, RetryPolicy

        settings = ClientSettings(
            timeout_seconds=self.timeout_seconds,
            deadline_seconds=self.timeout_seconds,
            retry=RetryPolicy(attempts=self.retry_attempts),
            correlation_id=self.correlation_id,
            user_agent="mooring-cli",
            ca_file=self.ca_file,
            allow_plain_http=self.allows_plain_http,
            observe=self._print_exchange if self.verbose else None,
        )
        return Client(self.url, credentials=credentials, settings=settings)

    def call(
        self,
        operation: str,
        path: dict[str, str] | None = None,
        query: dict[str, Any] | None = None,
        body: Any = None,
        *,
        options: "CallOptions | None" = None,
    ) -> Any:
        """Call an operation by name; returns its answer as plain data."""
        return self.client.call(plain_call(operation, path, query, body, options=options), Any)

    def public_call(self, operation: str, body: Any = None) -> Any:
        """Call an operation that needs no token."""
        return self.public_client.call(plain_call(operation, None, None, body), Any)

    def _print_exchange(self, exchange: "Exchange") -> None:
        outcome = exchange.failure if exchange.status is None else str(exchange.status)
        words = [f"{exchange.method} {exchange.target} → {outcome} in {exchange.seconds * 1000:.0f} ms"]
        if exchange.attempt > 1:
            words.append(f"attempt {exchange.attempt}")
        if exchange.replayed:
            words.append("replayed")
        if exchange.correlation_id:
            words.append(f"correlation id {exchange.correlation_id}")
        click.echo("; ".join(words), err=True)


def plain_call(
    operation: str,
    path: dict[str, str] | None = None,
    query: dict[str, Any] | None = None,
    body: Any = None,
    *,
    options: "CallOptions | None" = None,
) -> Any:
    """A call with plain data; None means no body."""
    import msgspec

    from mooring_sdk.calls import UNCHANGED, Call
    from mooring_sdk.operations import BY_NAME

    return Call(
        BY_NAME[operation], path or {}, query or {}, msgspec.UNSET if body is None else body, options or UNCHANGED
    )


def current() -> Invocation:
    """The invocation of the running command."""
    invocation = click.get_current_context().find_object(Invocation)
    assert invocation is not None, "the root command creates it"
    return invocation


def with_name(context: Context, name: str) -> Context:
    return replace(context, name=name)


def refuse(text: str) -> NoReturn:
    raise click.UsageError(text)
