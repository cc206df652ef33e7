"""Exit codes, and error messages for people and for programs.

0 done · 1 usage, or a value that the server refused · 2 the server or the network failed · 3 not signed in or not
allowed · 4 not found · 5 conflict · 130 interrupted. With `-o json` an error is one JSON object on stderr.
"""

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from mooring_cli.invocation import NotSignedIn

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from mooring_sdk import MooringError

DONE, USAGE, SERVER, AUTH, NOT_FOUND, CONFLICT = 0, 1, 2, 3, 4, 5
INTERRUPTED = 130
BROKEN_PIPE = 141
BY_STATUS = {401: AUTH, 403: AUTH, 404: NOT_FOUND, 410: NOT_FOUND, 409: CONFLICT, 429: SERVER}


class NoSuchName(click.ClickException):
    """A name of which the caller can see no resource."""


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


def report(error: Exception, *, as_json: bool) -> int:
    """Print an error on stderr; returns the exit code."""
    fields, code = describe(error)
    if as_json:
        print(json.dumps({"error": fields}, ensure_ascii=False), file=sys.stderr)
    else:
        print(in_words(error, fields), file=sys.stderr)
    return code


def describe(error: Exception) -> tuple[dict[str, Any], int]:
    """An error as data, and its exit code."""
    if isinstance(error, NotSignedIn):
        return {"code": "not_signed_in", "detail": error.message}, AUTH
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


def in_words(error: Exception, fields: dict[str, Any]) -> str:
    """An error for people: what happened, what to do, and its correlation id."""
    lines = [f"error: {fields['detail'] or fields.get('title', '')}"]
    if isinstance(error, click.UsageError) and error.ctx is not None:
        lines.append(f"try: {error.ctx.command_path} --help")
    if fields.get("remedy"):
        lines.append(f"  {fields['remedy']}")
    if fields.get("status") is not None:
        lines.append(f"  {fields['code']}; mooring explain {fields['code']}")
    if fields.get("correlation_id"):
        lines.append(f"  correlation id: {fields['correlation_id']}")
    return "\n".join(lines)
