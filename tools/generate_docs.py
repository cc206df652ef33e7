"""Write the reference pages from the tables that the server itself reads, or compare them with those.

`docs/errors.md`, `docs/events.md`, `docs/settings.md` and `docs/authorization.md` are made here. Without an option they
are written; with `--check` nothing is, and the exit code is 1, with the difference printed, when a page is not what the
tables say. Run it by `python -m tools.generate_docs`.
"""

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from mooring.__main__ import CODE_FILE
from mooring.api.problem import MEDIA_TYPE, STATUS
from mooring.api.route import Route
from mooring.api.routes import ROUTES
from mooring.api.schemas.records.record import EventView
from mooring.core.kernel.errors import CATALOGUE, Code
from mooring.core.kernel.event_types import MEANING, EventType
from mooring.core.kernel.permissions import ACTIONS, ROLE_SCOPE, SELF_ACTIONS, SERVICE_ACCOUNT_CEILING, Role, Scope
from mooring.core.records.delivery import RETRY_FACTOR, RETRY_FIRST_SECONDS, RETRY_MAX_SECONDS
from mooring.core.records.webhook import KEY_OVERLAP, KEY_PREFIX
from mooring.settings import PREFIX, Settings

DOCS = Path(__file__).resolve().parent.parent / "docs"
MADE = "<!-- Made by `python -m tools.generate_docs`; a test compares it with the tables it is made from. -->"

ENVELOPE: Mapping[str, str] = {
    "id": "Names this event for ever. Keep it to recognize an event that is delivered twice.",
    "cursor": "The place of the event in the stream; opaque.",
    "type": "What became true: one of the types above.",
    "noun": "The kind of thing that it became true of.",
    "subject_id": "Which of them.",
    "generation": "The transition of the subject's lifecycle, by its number; none if the event is not a transition.",
    "org_id": "The tenant; none for what belongs to the platform.",
    "project_id": "The project, where there is one.",
    "app_slug": "The app, where there is one.",
    "app_instance_id": "The instance, where there is one.",
    "actor_kind": "Who did it: `user`, `service_account`, `node` or `system`.",
    "actor_id": "Which of them.",
    "correlation_id": "The label of the request that caused it; the same on its audit rows and log lines.",
    "trace_id": "The trace of that request.",
    "occurred_at": "When, in UTC.",
    "data": "What is particular to the type. It never holds a secret.",
    "data_withheld": "True in the platform's own stream for what happened in a tenant: that it did, not what is in it.",
}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return lines + [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]


ERRORS_HEAD = f"""
Every refusal is a problem document (RFC 9457, `{MEDIA_TYPE}`) with the members `type`, `title`, `status`,
`code`, `detail`, `remedy`, `retryable`, `correlation_id` and `details`. Programs decide by `code`, which is one
of the list below and never changes its meaning; `detail` is for people. `retryable` says whether the same
request may succeed later, unchanged. Repeat a mutation with the same `Idempotency-Key`: it has one effect
however often it is sent. A refused request changed nothing.
"""


def errors_page() -> str:
    """The catalogue of errors."""
    lines = [
        "# Errors",
        "",
        MADE,
        "",
        ERRORS_HEAD.strip(),
        "",
        *table(
            ("code", "status", "retryable"),
            (
                (f"[`{code}`](#{code})", str(STATUS[code]), "yes" if CATALOGUE[code].retryable else "no")
                for code in Code
            ),
        ),
    ]
    for code in Code:
        entry = CATALOGUE[code]
        lines += [
            "",
            f"## {code}",
            "",
            f"**{entry.title}** · HTTP {STATUS[code]} · {'retryable' if entry.retryable else 'not retryable'}",
            "",
            entry.meaning,
            "",
            f"*What to do:* {entry.remedy}",
        ]
    return "\n".join(lines) + "\n"


EVENTS_HEAD = """
An event says what became true. It is written in the transaction that made it true: there is no event without
its effect, and no effect without its event. Events are read by cursor (`GET …/events`), followed live (`GET
…/events/stream`), and sent to webhooks; all three show the same events.
"""
EVENTS_RULES = """
## Order and delivery

- **Order.** A stream is ordered, and every reader sees the same order. Of one subject, generation *n* stands
  before *n + 1*.
- **Nothing is missed.** An event is shown only when nothing that is still being written can come before it.
  A client that continues from the last cursor it saw, after a lost connection, a restart or a restore of the
  database, misses none.
- **At least once.** A follower that lost its connection may see events after its last cursor again; a webhook
  may be sent twice. Recognize an event by its `id`.
- **Who sees what.** A project's stream holds the project's events, a tenant's those of the tenant and its
  projects. The platform's holds everything; events of a tenant stand there without their
  `data`.

## Cursors

A cursor is opaque text. Store it, send it back, do not read it, and do not compare two of them. Every event
carries its own; a page carries `next_cursor`, from which to go on even when the page was empty. In the live
stream the cursor is the `id:` of each message, and comes back as `Last-Event-ID`. A stream without a cursor
begins now; a list without one begins with the oldest event that is kept.

Events are kept for `{retention}` days unless `{variable}` says otherwise. A cursor from before that is answered
with [`cursor_expired`](errors.md#cursor_expired): read the resources again, then follow from
`details.oldest_cursor`. Text that is not a cursor of the event stream is answered with
[`cursor_invalid`](errors.md#cursor_invalid).

A stream ends with a message `event: closed` when its token was revoked or lost the permission, at the latest
after `{cache}` seconds.

## Webhooks

A webhook is sent each event that it asked for as one `POST` with the event as its JSON body and these headers:

| header | value |
| --- | --- |
| `webhook-id` | The delivery's id: the event's, a dot, the webhook's. The same whenever it is sent again. |
| `webhook-timestamp` | When this attempt was made, in seconds since 1970. |
| `webhook-signature` | One or more signatures, separated by spaces, each `v1,<base64>`. |

A signature is the HMAC-SHA256 of `<webhook-id>.<webhook-timestamp>.<body>`, in base64. The key is the one
shown when the webhook was created, without `{prefix}` and decoded from base64. For `{overlap}` hours after a change of
the key there is one signature by the new key and one by the old. To verify: take the body as the bytes that
arrived, compute the signature, compare it in constant time with each one that is given, and refuse a timestamp
that is more than five minutes away from your own clock.

`x-correlation-id` and the trace in `traceparent` are those of the request that caused the event.

Any 2xx response counts as received. Any other response, and none within `{timeout}` seconds, is tried
again after a pause of `{first}` seconds, then of `{factor}` times that, and so on up to `{longest}` hours, or
for as long as a `Retry-After` asks; `{attempts}` times in all. Then the delivery is dead: it stays in the
outbox, `contract.delivery.dead` says so, and it can be replayed. Redirects are not followed. Events about
deliveries (`contract.delivery.*`) are not sent to webhooks. A webhook of the platform receives the events of a
tenant as the platform's stream does: without `data`.
"""


def events_page() -> str:
    """The table of event types, the envelope and the rules."""
    shown = list(EventView.__struct_fields__)
    if shown != list(ENVELOPE):
        raise ValueError(f"the envelope has the fields {shown}; explained are {list(ENVELOPE)}")
    setting = Settings()
    rules = EVENTS_RULES.format(
        retention=_plain(setting.event_retention_days),
        variable=f"{PREFIX}EVENT_RETENTION_DAYS",
        cache=_plain(setting.token_cache_seconds),
        timeout=_plain(setting.webhook_timeout_seconds),
        attempts=_plain(setting.webhook_attempts_max),
        prefix=KEY_PREFIX,
        overlap=_plain(KEY_OVERLAP.total_seconds() / 3600),
        first=_plain(RETRY_FIRST_SECONDS),
        factor=_plain(RETRY_FACTOR),
        longest=_plain(RETRY_MAX_SECONDS / 3600),
    )
    lines = ["# Events", "", MADE, EVENTS_HEAD, "## Types"]
    for type_ in EventType:
        lines += ["", f"### {type_}", "", MEANING[type_]]
    lines += ["", "## The envelope", "", *table(("field", "meaning"), ((f"`{k}`", v) for k, v in ENVELOPE.items()))]
    return "\n".join(lines) + "\n" + rules


SETTINGS_HEAD = """
Settings are read once, at the start, from the environment. Every setting has a default that is right for a
laptop. An invalid value stops the start with the name of the setting and the values it accepts; an empty value
is the default.
"""
SETTINGS_TAIL = f"""
## Beside the settings

### {CODE_FILE}

A file (made with mode 0600) into which the first start writes the first admin's one-time sign-in code, instead
of printing it.

### OTEL_*

Where an OTLP endpoint is set, OpenTelemetry's own variables count as well: `OTEL_EXPORTER_OTLP_ENDPOINT`,
`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`,
`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`. `OTEL_SDK_DISABLED=true` switches traces off.
"""
FORMS: Mapping[type, str] = {str: "text", int: "a whole number, not negative", float: "a number, not negative"}


def settings_page() -> str:
    """Every setting."""
    lines = ["# Settings", "", MADE, SETTINGS_HEAD, "## All of them"]
    for each in fields(Settings):
        default = f"`{_plain(each.default)}`" if each.default != "" else "empty"
        lines += [
            "",
            f"### {PREFIX}{each.name.upper()}",
            "",
            f"{each.metadata['help']}",
            "",
            f"*Takes* {FORMS[type(each.default)]}. *Default:* {default}.",
        ]
    return "\n".join(lines) + "\n" + SETTINGS_TAIL


AUTHORIZATION_HEAD = """
Every endpoint names one action key and one kind of place; nothing asks for a role by its name. A role is a set
of keys. Review this page when it changes: it is the whole of what anybody may do.

- A **platform** role counts at platform places only. It opens no tenant's data; break-glass does, for a bounded
  time and with a reason that the tenant reads.
- A **tenant** role counts in the tenant and in each of its projects; a **project** role in that project.
- A caller who may read a tenant in one of its projects may read the tenant itself.
- A **service account** has a list of keys of its own in its one project, at most those of the last column, and
  never more than its giver holds there. Keys of the form `app.<slug>.<action>` are an app's own; a caller who
  may launch apps may give them.
- A **node** has the keys of its agent, and they count for that node alone: it reaches the endpoints below
  `/api/v1/agent` and no other, and nobody else reaches those.
- A **token** may be narrowed to some keys. It never holds more than its holder does at the moment of use, and
  makes no token that is wider than itself.
- Nobody gives or takes a role with keys that they do not hold in that place, and nobody adds a key to a service
  account that may do more than they may.
- Every principal but a node may do {own} with its own things.

A caller without the action key in a place where they hold a role gets
[`permission_denied`](errors.md#permission_denied); in a place where they hold none,
[`not_found`](errors.md#not_found). Both are audited.
"""


def authorization_page() -> str:
    """The printed matrix: action × role, then route × action."""
    own = ", ".join(f"`{key}`" for key in sorted(SELF_ACTIONS))
    lines = ["# Authorization", "", MADE, AUTHORIZATION_HEAD.format(own=own), "## Roles", ""]
    lines += table(("role", "counts at", "keys"), (_role_row(role) for role in Role))
    lines += [
        "",
        "## Actions",
        "",
        "●: the role has the key. *people*: the key is never on a service account's list. *nodes*: it is a node's.",
        "*in apps*: manifests of the category name it for actions of the app (`…/actions/{action_name}`). Every other",
        "key is asked for by an endpoint of the table below.",
        "",
        *table(("action", "meaning", *(f"{role}" for role in Role), "service account"), map(_action_row, ACTIONS)),
        "",
        "## Endpoints",
        "",
        "*idempotent*: takes an `Idempotency-Key`, and leaves an audit row. *one-time*: the response holds a secret",
        "that is shown once. *platform too*: in a tenant or a project, and also at the platform. *by category*: the",
        "key of a category (`<category>.<action>`) is enough for its apps. *or*: that key is enough too. *in parts*:",
        "some requests need that key besides.",
        "",
        *table(("method", "path", "action", "place", "remarks"), map(_route_row, sorted(ROUTES, key=_by_path))),
    ]
    return "\n".join(lines) + "\n"


def _role_row(role: Role) -> tuple[str, ...]:
    held = sum(role in action.roles for action in ACTIONS.values())
    return f"`{role}`", ROLE_SCOPE[role].value, str(held)


def _action_row(key: str) -> tuple[str, ...]:
    action = ACTIONS[key]
    last = "*people*" if action.human_only else "●" if key in SERVICE_ACCOUNT_CEILING else ""
    last = "*nodes*" if action.node_only else last
    meaning = f"{action.meaning} (*in apps*)" if action.by_app else action.meaning
    return f"`{key}`", meaning, *("●" if role in action.roles else "" for role in Role), last


def _route_row(route: Route) -> tuple[str, ...]:
    remarks = [
        ("idempotent", route.mutates),
        ("one-time", route.one_time_secret),
        ("platform too", route.platform_too),
        ("by category", route.family),
        *((f"or `{key}`", True) for key in route.instead),
        *((f"in parts `{key}`", True) for key in route.also),
    ]
    action = "none" if route.scope is Scope.PUBLIC else f"`{route.action}`"
    listed = ", ".join(word for word, holds in remarks if holds)
    return route.method, f"`{route.path}`", action, route.scope.value, listed


def _by_path(route: Route) -> tuple[str, str]:
    return route.path, route.method


def _plain(value: object) -> str:
    """A number as people write it."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


PAGES: Mapping[str, Callable[[], str]] = {
    "authorization.md": authorization_page,
    "errors.md": errors_page,
    "events.md": events_page,
    "settings.md": settings_page,
}


def check(path: Path, wanted: str) -> bool:
    """Whether the page at `path` is the wanted one; the difference is printed where it is not."""
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    if found == wanted:
        return True
    difference = difflib.unified_diff(
        found.splitlines(keepends=True), wanted.splitlines(keepends=True), f"{path.name} (stored)", "the tables"
    )
    sys.stderr.writelines(difference)
    sys.stderr.write(f"{path} is not what the tables say; run python -m tools.generate_docs\n")
    return False


def main(arguments: Sequence[str], directory: Path = DOCS) -> int:
    """Write or check the pages; the exit code."""
    parser = argparse.ArgumentParser(description="Write the reference pages of docs/ from the server's tables.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    pages = {directory / name: page() for name, page in PAGES.items()}
    if parser.parse_args(arguments).check:
        differing = [path for path, wanted in pages.items() if not check(path, wanted)]
        return 1 if differing else 0
    directory.mkdir(parents=True, exist_ok=True)
    for path, wanted in pages.items():
        path.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
