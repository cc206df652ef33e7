"""Converting text to typed values, with errors that say where and what is wrong."""

import re
from datetime import datetime
from typing import Any, Final, get_type_hints
from urllib.parse import parse_qsl

import msgspec

from mooring.api.route import Route
from mooring.api.validation_words import field_of, in_words
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix, is_id

PARAMETER_PREFIX: Final = {
    "tenant_id": Prefix.TENANT,
    "project_id": Prefix.PROJECT,
    "terminal_id": Prefix.VISIT,
    "user_id": Prefix.USER,
    "membership_id": Prefix.MEMBERSHIP,
    "service_account_id": Prefix.SERVICE_ACCOUNT,
    "key_id": Prefix.KEY,
    "token_id": Prefix.TOKEN,
    "user_token_id": Prefix.TOKEN,
    "webhook_id": Prefix.WEBHOOK,
    "app_id": Prefix.APP,
    "version_id": Prefix.APP_VERSION,
    "entitlement_id": Prefix.ENTITLEMENT,
    "artifact_id": Prefix.ARTIFACT,
    "source_id": Prefix.ARTIFACT_SOURCE,
    "signer_key_id": Prefix.SIGNER_KEY,
    "break_glass_id": Prefix.BREAK_GLASS,
    "node_id": Prefix.NODE,
    "enrolment_token_id": Prefix.ENROLMENT_TOKEN,
    "sku_id": Prefix.SKU,
    "allocation_id": Prefix.ALLOCATION,
    "group_id": Prefix.ALLOCATION_GROUP,
    "endpoint_id": Prefix.TASK,
    "task_id": Prefix.TASK,
    "receipt_id": Prefix.RECEIPT,
    "instance_id": Prefix.INSTANCE,
    "member_id": Prefix.MEMBER,
    "operation_id": Prefix.OPERATION,
    "late_usage_id": Prefix.LATE_USAGE,
}
"""The id prefix of each path parameter that is an id; other parameters are plain text."""

FORM_FIELDS_MAX: Final = 20
SMALL_BODY_BYTES: Final = 65_536
CONTAINERS_MAX: Final = 100_000
"""How many lists and objects a body may have: each costs much more than its two characters."""
CLOUDEVENTS_BATCH: Final = "application/cloudevents-batch+json"
NDJSON: Final = "application/x-ndjson"
BATCH_TYPES: Final = (CLOUDEVENTS_BATCH, NDJSON)
"""How a batch may come besides the JSON object: as an array, or with one item per line."""
SHOWN_MAX: Final = 500  # how much of an error message is shown
SCOPE: Final = "scope"

_WHERE: Final = re.compile(r" - at `\$(?P<path>[^`]*)`$")


def require_ids(parameters: dict[str, str]) -> None:
    """Answer a malformed id like one that does not exist."""
    for name, value in parameters.items():
        prefix = PARAMETER_PREFIX.get(name)
        if prefix is not None and not is_id(value, prefix):
            raise Refusal(Code.NOT_FOUND, f"{name} is not a valid id: it must begin with {prefix}_")


def decode_body(body: bytes, kind: type[msgspec.Struct], decoder: msgspec.json.Decoder[Any] | None) -> Any:
    if len(body) > SMALL_BODY_BYTES and body.count(b"[") + body.count(b"{") > CONTAINERS_MAX:
        reason = f"the body has more than {CONTAINERS_MAX} lists and objects"
        raise Refusal(Code.BODY_TOO_LARGE, reason, {"limit_lists_and_objects": CONTAINERS_MAX})
    try:
        return decoder.decode(body) if decoder is not None else msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(error) from error
    except msgspec.DecodeError as error:
        raise Refusal(Code.MALFORMED_REQUEST, f"the body is not JSON: {error}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise Refusal(Code.MALFORMED_REQUEST, "the body is not JSON in UTF-8, or nested too deeply") from error


def decode_batch(body: bytes, route: Route, media_type: str, decoder: msgspec.json.Decoder[Any]) -> Any:
    """The body of a batch that came as the list alone."""
    if media_type == NDJSON:
        body = b"[" + b",".join(line for line in body.splitlines() if line.strip()) + b"]"
    kind: Any = route.body
    return kind(**{route.batch: decode_body(body, kind, decoder)})


def batch_decoder(route: Route) -> msgspec.json.Decoder[Any]:
    """Decodes the list of a batch under the same bounds as inside of its object."""
    return msgspec.json.Decoder(get_type_hints(route.body, include_extras=True)[route.batch])


def decode_form(body: bytes, kind: type[msgspec.Struct], decoder: Any) -> Any:
    try:
        text = body.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(body), max_num_fields=FORM_FIELDS_MAX)
    except (ValueError, UnicodeDecodeError) as error:
        raise Refusal(Code.MALFORMED_REQUEST, "the body is not form-encoded") from error
    return _convert(_single(pairs), kind, strict=False)


def decode_query(route: Route, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """The typed query of a request; unknown parameters are refused, not ignored."""
    values = _single(_joined(pairs))
    known = set(route.query.__struct_encode_fields__) if route.query is not None else set()
    unknown = sorted(set(values) - known)
    if unknown:
        listed = ", ".join(sorted(known)) or "none"
        raise Refusal(
            Code.VALIDATION_FAILED,
            f"unknown query parameter {unknown[0][:50]!r}; allowed: {listed}",
            {"path": unknown[0][:50]},
        )
    return {} if route.query is None else {"query": _convert(values, route.query, strict=False)}


def _joined(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs with all scopes joined into one: registry clients repeat the parameter, as their protocol says."""
    scopes = [value for name, value in pairs if name == SCOPE]
    if len(scopes) < 2:
        return pairs
    return [*(pair for pair in pairs if pair[0] != SCOPE), (SCOPE, " ".join(scopes))]


def _single(pairs: list[tuple[str, str]]) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise Refusal(Code.VALIDATION_FAILED, f"{name[:50]!r} is given twice", {"path": name[:50]})
        values[name] = value
    return values


def _convert(values: dict[str, str], kind: type[msgspec.Struct], *, strict: bool) -> Any:
    try:
        converted = msgspec.convert(values, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise _invalid(error) from error
    for name, value in values.items():
        # Lax conversion reads the text "null" as None, so that `?id=null` would match all, and a number as a time.
        if getattr(converted, name) is None or isinstance(getattr(converted, name), datetime):
            setattr(converted, name, _text(kind, name, value))
    return converted


def _text(kind: type[msgspec.Struct], name: str, value: str) -> Any:
    """A parameter's text as a value of its type, if that type accepts this text."""
    try:
        return msgspec.convert(value, get_type_hints(kind, include_extras=True)[name], strict=True)
    except msgspec.ValidationError as error:
        raise Refusal(Code.VALIDATION_FAILED, f"{name}: {in_words(str(error))}", {"path": name}) from error


def _invalid(error: msgspec.ValidationError) -> Refusal:
    text = str(error)
    location = _WHERE.search(text)
    message = (text[: location.start()] if location else text)[:SHOWN_MAX]  # it may repeat the input
    around = location["path"].lstrip(".")[:SHOWN_MAX] if location else ""
    path = ".".join(each for each in (around, field_of(message)) if each)
    message = in_words(message)
    return Refusal(Code.VALIDATION_FAILED, f"{path}: {message}" if path else message, {"path": path})
