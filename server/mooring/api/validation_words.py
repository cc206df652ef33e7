"""Says in words why a value was refused, instead of repeating the sentence of the library that refused it."""

import re
from typing import Final

from mooring.core.kernel.validation import EMAIL_PATTERN

UNITS: Final = {"str": "characters", "array": "items", "object": "entries", "bytes": "bytes"}
KINDS: Final = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
    "datetime": "a time in ISO 8601",
    "bytes": "bytes in base64",
}
NUMBER: Final = r"(?P<number>-?[\d.e+]+)"
COMPARED: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
LENGTH: Final = re.compile(rf"^Expected `(?P<kind>\w+)` of length (?P<sign><=|>=) {NUMBER}$")
BOUND: Final = re.compile(rf"^Expected `\w+` (?P<sign><=|>=|<|>) {NUMBER}$")
MULTIPLE: Final = re.compile(rf"^Expected `\w+` that's a multiple of {NUMBER}$")
PATTERN: Final = re.compile(r"^Expected `str` matching regex '(?P<pattern>.*)'$", re.DOTALL)
TYPE: Final = re.compile(r"^Expected `(?P<kinds>[^`]+)`(, got `(?P<got>\w+)`)?$")
CHOICE: Final = re.compile(r"^Invalid enum value (?P<value>.*)$", re.DOTALL)
UNKNOWN: Final = re.compile(r"^Object contains unknown field `(?P<field>[^`]*)`$")
MISSING: Final = re.compile(r"^Object missing required field `(?P<field>[^`]*)`$")

ID: Final = re.compile(r"^\^(?P<prefix>[a-z]{2,4}_)\[0-7\]\[0-9a-hjkmnp-tv-z\]\{25\}\$$")
OPTIONS: Final = re.compile(r"^\^\((?P<options>[a-z_]+(\|[a-z_]+)+)\)\$$")
FORMS: Final = {
    "^[a-z][a-z0-9-]{1,38}[a-z0-9]$": "3 to 40 lower-case letters, digits and hyphens; the first a letter, the last no "
    "hyphen",
    "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$": "1 to 63 lower-case letters, digits, dots, hyphens and underscores; the "
    "first and the last a letter or a digit",
    "^[a-z][a-z0-9_.-]{0,62}$": "1 to 63 lower-case letters, digits, dots, hyphens and underscores; the first a letter",
    "^[a-z][a-z0-9_]{1,39}$": "2 to 40 lower-case letters, digits and underscores; the first a letter",
    "^[a-z0-9]+([._/-][a-z0-9]+)*$": "lower-case letters and digits, with single dots, hyphens, underscores or slashes "
    "between them",
    "^[A-Za-z_][A-Za-z0-9_]{0,127}$": "the name of an environment variable: letters, digits and underscores",
    EMAIL_PATTERN: "an e-mail address such as ann@acme.example",
    "^[A-Z]{3}$": "a currency in three capitals, such as EUR",
    "^sha256:[0-9a-f]{64}$": "a digest: sha256: and 64 hexadecimal digits",
    "^20\\d\\d-[01]\\d-[0-3]\\dT[0-2]\\d:00:00Z$": "a whole hour in UTC, such as 2026-01-31T12:00:00Z",
    "^[a-z0-9_]+$": "lower-case letters, digits and underscores",
    "^[a-z_]+(\\.[a-z_]+)*(\\.\\*)?$": "an event type such as apps.instance.running, or a group such as apps.*",
}
"""What people type, by the pattern that checks it; a pattern without an entry is shown as it is."""


def in_words(message: str) -> str:
    """The reason of a library's message in words; the message itself if it is of no known form."""
    if match := LENGTH.match(message):
        return f"{COMPARED[match['sign']]} {match['number']} {UNITS.get(match['kind'], 'items')}"
    if match := BOUND.match(message):
        return f"{COMPARED[match['sign']]} {_number(match['number'])}"
    if match := MULTIPLE.match(message):
        return f"a multiple of {_number(match['number'])}"
    if match := PATTERN.match(message):
        return _form(match["pattern"].replace(r"\\", "\\"))
    if match := CHOICE.match(message):
        return f"{match['value']} is not one of the allowed values"
    if match := TYPE.match(message):
        kinds = [KINDS.get(each, each) for each in match["kinds"].split(" | ") if each != "null"]
        got = f", not {KINDS.get(match['got'], match['got'])}" if match["got"] else ""
        return f"must be {' or '.join(kinds)}{got}"
    if match := MISSING.match(message):
        return "is missing"
    return "is not known here" if UNKNOWN.match(message) else message


def _form(pattern: str) -> str:
    """What a value of this pattern is."""
    if match := ID.match(pattern):
        return f"must be an id that begins with {match['prefix']}"
    if match := OPTIONS.match(pattern):
        return f"must be one of {match['options'].replace('|', ', ')}"
    words = FORMS.get(pattern)
    return f"must be {words}" if words else f"does not have the form {pattern}"


def field_of(message: str) -> str:
    """The field that a message is about, if it names one that the body lacks or should not have."""
    match = MISSING.match(message) or UNKNOWN.match(message)
    return match["field"] if match else ""


def _number(text: str) -> str:
    return text.removesuffix(".0")
