"""Sign in and out, and show who you are.

A password is used once: it is exchanged for a session, which makes a personal access token and is then ended. Only
the token is stored, in the file of contexts. Passwords and codes come from a prompt or from stdin, never from an
option, which everybody could see in the list of processes.
"""

import platform
import sys
from dataclasses import replace
from typing import Any

import click

from mooring_cli import option_types, output
from mooring_cli.contexts import DEFAULT_NAME, Context
from mooring_cli.invocation import Invocation, NotSignedIn, current
from mooring_cli.main import MooringCommand

LIFETIME = "30d"
PASSWORD_LENGTH_MIN = 12


@click.command(cls=MooringCommand)
@click.option("--tenant", metavar="SLUG", help="Your home tenant; empty for users of the platform.")
@click.option("--email", metavar="ADDRESS", help="Your e-mail address.")
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin.")
@click.option("--one-time-code", is_flag=True, help="First sign-in: ask for the one-time code and a new password.")
@click.option(
    "--one-time-code-stdin",
    is_flag=True,
    help="First sign-in: read the one-time code and the new password from stdin, one per line.",
)
@click.option("--name", "token_name", metavar="TEXT", help="Name of the token. [default: this machine's name]")
@click.option(
    "--expires-in", type=option_types.Seconds(), default=LIFETIME, show_default=True, help="Lifetime of the token."
)
def login(
    *,
    tenant: str | None,
    email: str | None,
    password_stdin: bool,
    one_time_code: bool,
    one_time_code_stdin: bool,
    token_name: str | None,
    expires_in: int,
) -> None:
    """Sign in, and store a personal access token in this context."""
    invocation = current()
    if password_stdin + one_time_code + one_time_code_stdin > 1:
        raise click.UsageError("give only one of --password-stdin, --one-time-code and --one-time-code-stdin")
    name = invocation.chosen_name or DEFAULT_NAME
    before = invocation.contexts.current
    known = invocation.contexts.by_name.get(name) or beside_current(invocation, name)
    invocation.context_name = None
    where = known_or_asked(invocation, known, tenant, email)
    invocation.url_option, invocation.ca_file_option = where.url, where.ca_file
    invocation.retry_attempts = 1  # a person is waiting, and can try again
    body: dict[str, Any] = {"email": where.email}
    if where.tenant:
        body["tenant"] = where.tenant
    once = one_time_code or one_time_code_stdin
    body |= read_credentials(invocation, once=once, from_stdin=password_stdin or one_time_code_stdin)
    kept = exchange(
        invocation, where, body, name=token_name or f"mooring on {platform.node() or 'a machine'}", seconds=expires_in
    )
    invocation.save(invocation.contexts.with_context(kept, use=True))
    place = f"tenant {kept.tenant}" if kept.tenant else "the platform"
    output.note(f"Signed in to {kept.url} as {kept.email}, {place}; stored as context {kept.name!r}.")
    if before not in (None, kept.name):
        output.note(
            f"Switched from the context {before!r} to {kept.name!r}; mooring context use {before} switches back."
        )


def beside_current(invocation: Invocation, name: str) -> Context:
    """A new context: at the same server as the current one, if there is one."""
    current = invocation.contexts.by_name.get(invocation.contexts.current or "")
    return Context(name) if current is None else Context(name, current.url, ca_file=current.ca_file)


def require_server(invocation: Invocation) -> None:
    """Refuse an address at which no Mooring answers, before anybody types a secret."""
    from mooring_sdk import ConnectionFailed, MooringError

    try:
        invocation.public_call("get_health")
    except ConnectionFailed:
        raise
    except MooringError as error:
        if error.status == 404 or error.code == "invalid_response":
            raise click.UsageError(f"{invocation.url} is not the address of a Mooring server; give --url") from error


def known_or_asked(invocation: Invocation, known: Context, tenant: str | None, email: str | None) -> Context:
    """Server, tenant and e-mail address: from the options, the environment, the context, or a prompt."""
    address = invocation.url_option or invocation.environment.get("MOORING_URL") or known.url
    home = tenant if tenant is not None else invocation.environment.get("MOORING_TENANT") or known.tenant
    person = email or known.email
    if person is None:
        if not invocation.may_ask:
            raise click.UsageError("missing: --email")
        person = click.prompt("e-mail address", err=True)
        if home is None:
            home = click.prompt("tenant (empty for the platform)", default="", show_default=False, err=True)
    same_place = home == known.tenant and address == known.url
    ca_file = invocation.given_ca_file or (known.ca_file if address.rstrip("/") == known.url.rstrip("/") else None)
    return Context(
        known.name,
        address.rstrip("/"),
        home or None,
        known.project if same_place else None,
        person,
        ca_file=ca_file,
    )


def read_credentials(invocation: Invocation, *, once: bool, from_stdin: bool) -> dict[str, str]:
    """A password, or a one-time code with the new password."""
    if from_stdin:
        lines = [line.rstrip("\r\n") for line in sys.stdin.readlines()]
        if len(lines) < (2 if once else 1) or not all(lines[: 2 if once else 1]):
            raise click.UsageError(
                "stdin must have the code and the new password, one per line" if once else "stdin is empty"
            )
        if once:
            return {"one_time_code": lines[0], "new_password": long_enough(lines[1])}
        return {"password": lines[0]}
    if not invocation.may_ask:
        raise click.UsageError(
            "there is no terminal to ask for a password on; use --password-stdin or --one-time-code-stdin"
        )
    require_server(invocation)
    if not once:
        return {"password": click.prompt("password", hide_input=True, err=True)}
    code = click.prompt("one-time code", hide_input=True, err=True)
    return {"one_time_code": code.strip(), "new_password": ask_new_password()}


def ask_new_password() -> str:
    """A new password from the prompt, which asks again until it is long enough."""
    text = f"new password (at least {PASSWORD_LENGTH_MIN} characters)"
    asked = click.prompt(
        text,
        hide_input=True,
        confirmation_prompt="repeat the new password",
        value_proc=long_enough,
        err=True,
    )
    return str(asked)


def long_enough(password: str) -> str:
    """The password, unless it is too short; the server checks more than that."""
    if len(password) < PASSWORD_LENGTH_MIN:
        raise click.UsageError(f"the new password has {len(password)} characters; it needs {PASSWORD_LENGTH_MIN}")
    return password


def exchange(invocation: Invocation, where: Context, body: dict[str, Any], *, name: str, seconds: int) -> Context:
    """Sign in, make a token and end the session; returns the context with the token."""
    from mooring_sdk import TokenCredentials
    from mooring_sdk.calls import Call
    from mooring_sdk.credentials import SIGN_IN

    signed_in: Any = invocation.public_client.call(Call(SIGN_IN, body=body), Any)
    with invocation.client_with(TokenCredentials(signed_in["token"])) as session:
        made = session.create_token(name=name[:100], expires_in_seconds=seconds)
        session.revoke_token(signed_in["token_id"])
    expires_at = made.expires_at.isoformat()
    return replace(where, token=made.token, token_id=made.id, token_expires_at=expires_at)


@click.command(cls=MooringCommand)
def logout() -> None:
    """Revoke the token of this context, and delete it."""
    from mooring_sdk import MooringError, TokenCredentials

    invocation = current()
    context = invocation.context
    if context.token is None or context.token_id is None:
        raise NotSignedIn(context.url)
    invocation.url_option = context.url
    invocation.ca_file_option = invocation.ca_file_option or context.ca_file
    forgotten = replace(context, token=None, token_id=None, token_expires_at=None)
    try:
        with invocation.client_with(TokenCredentials(context.token)) as client:
            client.revoke_token(context.token_id)
    except MooringError as error:
        if error.status != 401:  # it was not valid any more
            raise
    invocation.save(invocation.contexts.with_context(forgotten, use=False))
    output.note(f"Signed out of {context.url}; the token is revoked.")


@click.command(cls=MooringCommand)
def whoami() -> None:
    """Show who you are, your roles, and what you may do where."""
    invocation = current()
    answer = invocation.call("get_whoami")
    if invocation.output != "table":
        output.show(invocation.output, answer)
        return
    roles = [
        each["role"] + (f" in {each['project_id']}" if each.get("project_id") else "")
        for each in answer.get("roles", [])
    ]
    shown = {
        "server": invocation.url,
        "context": invocation.chosen_name or "-",
        **{key: answer.get(key) for key in ("kind", "id", "tenant_id", "token_kind", "expires_at", "break_glass_id")},
        "roles": roles,
        "platform_actions": counted(answer.get("platform_actions", [])),
        "tenant_actions": counted(answer.get("tenant_actions", [])),
        "project_actions": [f"{each}: {counted(keys)}" for each, keys in answer.get("project_actions", {}).items()],
    }
    output.show("table", {key: value for key, value in shown.items() if value not in (None, "", [])})


def counted(actions: list[str]) -> str:
    """The number of action keys; the JSON has them all."""
    return f"{len(actions)} (all with -o json)" if actions else ""


@click.command(cls=MooringCommand)
@click.option("--passwords-stdin", is_flag=True, help="Read the current and the new password from stdin, one per line.")
def password(*, passwords_stdin: bool) -> None:
    """Change your own password."""
    invocation = current()
    if passwords_stdin:
        lines = [line.rstrip("\r\n") for line in sys.stdin.readlines()]
        if len(lines) < 2:
            raise click.UsageError("stdin must have the current and the new password, one per line")
        body = {"current_password": lines[0], "new_password": long_enough(lines[1])}
    elif invocation.may_ask:
        body = {"current_password": click.prompt("current password", hide_input=True, err=True)}
        body["new_password"] = ask_new_password()
    else:
        raise click.UsageError("there is no terminal to ask for a password on; use --passwords-stdin")
    invocation.call("change_own_password", body=body)
    output.note("Password changed.")
