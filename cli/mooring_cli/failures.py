"""Exit codes, and error messages for people and for programs.

0 done · 1 usage, or a value that the server refused · 2 the server or the network failed · 3 not signed in or not
allowed · 4 not found · 5 conflict · 130 interrupted. With `-o json` an error is one JSON object on stderr.
"""

import json
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from mooring_cli.invocation import NotSignedIn

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from mooring_cli.invocation import Invocation
    from mooring_sdk import MooringError

DONE, USAGE, SERVER, AUTH, NOT_FOUND, CONFLICT = 0, 1, 2, 3, 4, 5
INTERRUPTED = 130
BROKEN_PIPE = 141
BY_STATUS = {401: AUTH, 403: AUTH, 404: NOT_FOUND, 410: NOT_FOUND, 409: CONFLICT, 429: SERVER}


REFERENCE = re.compile(r"`details\.(\w+)`")
LISTS = {
    "app": "mooring catalog list shows the apps that this project can launch.",
    **{
        noun: f"mooring {noun}s list shows what there is."
        for noun in ("allocation", "artifact", "entitlement", "instance", "node", "project", "sku", "tenant", "user")
    },
    "member": "mooring instances members list INSTANCE shows what there is.",
    "operation": "mooring instances operations list INSTANCE shows what there is.",
    "service account": "mooring service-accounts list shows what there is.",
    "version": "mooring apps versions list APP shows what there is.",
}
"""What to do about a name that does not exist, instead of checking an id."""


class NoSuchName(click.ClickException):
    """A name of which the caller can see no resource."""


class OtherContent(click.ClickException):
    """The resource exists already, with other content."""


class OptionRefused(Exception):
    """The server refused a value, and this is the option that it came from."""

    def __init__(self, option: str, answer: Exception) -> None:
        self.option, self.answer = option, answer
        super().__init__(str(answer))


def refused_option(error: Exception, command: click.Command) -> str | None:
    """The option whose value the server refused, by the path in its answer; None if no option of the command fits."""
    if not is_answer(error) or error.code != "validation_failed":
        return None
    parts = [part.partition("[")[0].replace("_", "-") for part in str(error.details.get("path") or "").split(".")]
    whole = "-".join(parts)
    for name in (whole, whole.removesuffix("-id"), f"{whole}-file", parts[-1], parts[-1].removesuffix("s")):
        for parameter in command.params:
            if name and isinstance(parameter, click.Option) and f"--{name}" in parameter.opts:
                return f"--{name}"
            if name and isinstance(parameter, click.Argument) and parameter.name == name:
                return parameter.make_metavar(click.get_current_context())
    return None


def exit_code(status: int | None) -> int:
    """The exit code for an error of the API; without a status there was no answer."""
    if status is None or status >= 500 or status < 400:
        return SERVER
    return BY_STATUS.get(status, USAGE)


def wants_json(arguments: list[str]) -> bool:
    """Whether JSON was requested, even if the other arguments are invalid."""
    for number, argument in enumerate(arguments):
        if argument in ("-ojson", "--output=json", "-o=json"):
            return True
        if argument in ("-o", "--output") and arguments[number + 1 : number + 2] == ["json"]:
            return True
    return False


def report(error: Exception, *, as_json: bool, hints: tuple[str, ...] = ()) -> int:
    """Print an error on stderr; returns the exit code."""
    fields, code = describe(error)
    if as_json:
        print(json.dumps({"error": fields}, ensure_ascii=False), file=sys.stderr)
    else:
        print(in_words(error, fields, hints), file=sys.stderr)
    return code


def hints_of(error: Exception, invocation: "Invocation") -> tuple[str, ...]:
    """What this command line knows about an error beyond what the server says: names of contexts."""
    if not is_answer(error) or error.code != "source_denied":
        return ()
    stored = invocation.contexts.by_name
    here = stored.get(invocation.chosen_name or "")
    place = f"tenant {here.tenant}" if here is not None and here.tenant else "the platform"
    name = invocation.chosen_name or "default"
    lines = [f"You are in the context {name!r}, in {place}; mooring artifact-sources list shows the sources there."]
    others = [
        each.name
        for each in stored.values()
        if here is not None and here.tenant and not each.tenant and each.token and each.url == here.url
    ]
    if others:
        lines.append(f"The platform's own sources are used in the context {others[0]!r}: add --context {others[0]}.")
    return tuple(lines)


def describe(error: Exception) -> tuple[dict[str, Any], int]:
    """An error as data, and its exit code."""
    if isinstance(error, OptionRefused):
        return describe(error.answer)
    if isinstance(error, NotSignedIn):
        return {"code": "not_signed_in", "detail": error.message}, AUTH
    if isinstance(error, OtherContent):
        return {"code": "conflict", "detail": error.format_message()}, CONFLICT
    if isinstance(error, NoSuchName):
        return {"code": "not_found", "detail": error.message}, NOT_FOUND
    if isinstance(error, click.ClickException):
        return {"code": "usage", "detail": error.format_message()}, USAGE
    if is_answer(error):
        return of_answer(error), exit_code(error.status)
    return {"code": "refused_here", "detail": str(error)}, USAGE


def is_answer(error: Exception) -> "TypeIs[MooringError]":
    """Whether the SDK raised it; checked without importing the SDK."""
    sdk = sys.modules.get("mooring_sdk.mooring_error")
    return sdk is not None and isinstance(error, sdk.MooringError)


def of_answer(error: "MooringError") -> dict[str, Any]:
    return {
        "code": error.code,
        "title": error.title,
        "detail": error.detail,
        "remedy": error.remedy,
        "status": error.status,
        "retryable": error.retryable,
        "correlation_id": error.correlation_id,
        "details": error.details,
    }


def in_words(error: Exception, fields: dict[str, Any], hints: tuple[str, ...] = ()) -> str:
    """An error for people: what happened, what to do, and its correlation id."""
    lines = [f"error: {detail_of(error, fields)}"]
    if isinstance(error, click.UsageError) and error.ctx is not None:
        lines.append(f"try: {error.ctx.command_path} --help")
    lines += [f"  {line}" for line in (*remedy_lines(error, fields), *hints)]
    if fields.get("status") is not None:
        lines.append(f"  {fields['code']}; mooring explain {fields['code']}")
    if fields.get("correlation_id"):
        lines.append(f"  correlation id: {fields['correlation_id']}")
    return "\n".join(lines)


def detail_of(error: Exception, fields: dict[str, Any]) -> str:
    """What happened; a refused value is named by its option."""
    text = str(fields["detail"] or fields.get("title", ""))
    if not isinstance(error, OptionRefused):
        return text
    path = str((fields.get("details") or {}).get("path") or "")
    reason = text.removeprefix(f"{path}: ")
    return f"{error.option}: {reason}"


def remedy_lines(error: Exception, fields: dict[str, Any]) -> list[str]:
    """What to do, with the values of `details` that the remedy refers to."""
    details = fields.get("details") or {}
    noun = details.get("noun")
    if fields.get("code") == "not_found" and noun in LISTS:
        return [LISTS[noun]]
    remedy = fields.get("remedy")
    if not remedy or isinstance(error, OptionRefused):
        return []
    lines = [str(remedy)]
    for name in dict.fromkeys(REFERENCE.findall(remedy)):
        if details.get(name) not in (None, "", [], {}):
            lines.append(f"  {name}: {value_text(details[name])}")
    return lines


def value_text(value: Any) -> str:
    """A value of `details` in one line."""
    if isinstance(value, list) and not any(isinstance(each, dict | list) for each in value):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
