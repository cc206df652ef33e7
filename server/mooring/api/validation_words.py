"""Says in words why a value was refused, instead of repeating the sentence of the library that refused it."""

import re
from typing import Final

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


def in_words(message: str) -> str:
    """The reason of a library's message in words; the message itself if it is of no known form."""
    if match := LENGTH.match(message):
        return f"{COMPARED[match['sign']]} {match['number']} {UNITS.get(match['kind'], 'items')}"
    if match := BOUND.match(message):
        return f"{COMPARED[match['sign']]} {_number(match['number'])}"
    if match := MULTIPLE.match(message):
        return f"a multiple of {_number(match['number'])}"
    if match := PATTERN.match(message):
        return f"does not have the form {match['pattern']}"
    if match := CHOICE.match(message):
        return f"{match['value']} is not one of the allowed values"
    if match := TYPE.match(message):
        kinds = [KINDS.get(each, each) for each in match["kinds"].split(" | ") if each != "null"]
        got = f", not {KINDS.get(match['got'], match['got'])}" if match["got"] else ""
        return f"must be {' or '.join(kinds)}{got}"
    if match := MISSING.match(message):
        return "is missing"
    return "is not known here" if UNKNOWN.match(message) else message


def field_of(message: str) -> str:
    """The field that a message is about, if it names one that the body lacks or should not have."""
    match = MISSING.match(message) or UNKNOWN.match(message)
    return match["field"] if match else ""


def _number(text: str) -> str:
    return text.removesuffix(".0")
