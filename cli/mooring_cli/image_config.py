"""What an image's config says about how it is run: ports, arguments, user, health check.

A config comes from anywhere, so every value is checked, and what cannot be used becomes a note for the reader instead
of a value of the manifest.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import click

CONFIG_BYTES_MAX = 1_048_576
PORTS_MAX = 32
ARGUMENTS_MAX = 128
ARGUMENT_LENGTH_MAX = 4_096
NANOSECONDS = 1_000_000_000
USER_DEFAULT = "1000:1000"
"""The user of a container whose manifest names none."""
_PORT = re.compile(r"([0-9]{1,5})(?:/(tcp|udp))?")
_USER = re.compile(r"([1-9][0-9]{0,4})(?::([1-9][0-9]{0,4}))?")
_FETCH = re.compile(
    r"(?:^|[\s\"'])https?://(?:localhost|127\.0\.0\.1|0\.0\.0\.0|\[::1\])(?::([0-9]{1,5}))?(/[A-Za-z0-9._~/-]*)?"
    r"(?=$|[\s\"';|&)])"
)


class ImageRefused(click.ClickException):
    """The image cannot be used; the message says why, and what to do."""


@dataclass(frozen=True)
class ImagePort:
    port: int
    protocol: str


@dataclass(frozen=True)
class HealthCheck:
    """How the image says that it is checked; the path is None if only the port is known."""

    port: int | None
    path: str | None
    period_seconds: int = 10
    timeout_seconds: int = 5
    failures_max: int = 3
    start_seconds: int = 0


@dataclass(frozen=True)
class ImageConfig:
    """An image's config as far as a manifest needs it."""

    ports: tuple[ImagePort, ...] = ()
    arguments: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    numeric_user: str | None = None
    health: HealthCheck | None = None
    architecture: str = ""
    notes: tuple[str, ...] = field(default=())


def read_config(content: bytes, health: Any = None) -> ImageConfig:
    """Read an image's config; values that cannot be used are left out, with a note.

    `health` is a health check that is known from elsewhere.
    """
    if len(content) > CONFIG_BYTES_MAX:
        raise ImageRefused(f"the image's config has more than {CONFIG_BYTES_MAX} bytes")
    try:
        plain = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ImageRefused(f"the image's config is not JSON: {error}") from error
    if not isinstance(plain, dict) or not isinstance(plain.get("config") or {}, dict):
        raise ImageRefused("the image's config is not an object; is this a container image?")
    if plain.get("os", "linux") != "linux":
        raise ImageRefused(f"the image is for {_short(plain['os'])}, and nodes run linux")
    run: dict[str, Any] = plain.get("config") or {}
    notes: list[str] = []
    ports = _ports(run.get("ExposedPorts"), notes)
    entrypoint, arguments = _words(run.get("Entrypoint"), "Entrypoint", notes), _words(run.get("Cmd"), "Cmd", notes)
    if not entrypoint and not arguments:
        notes.append("the image has neither Entrypoint nor Cmd: write what it runs into runtime_profile.command")
    user = _user(run.get("User"), notes)
    if run.get("Volumes"):
        notes.append(
            "the image declares volumes: they are empty and in memory; a scratch volume of the manifest is not"
        )
    return ImageConfig(
        ports,
        arguments,
        entrypoint,
        user,
        _health(run.get("Healthcheck") or health, ports, notes),
        plain["architecture"] if isinstance(plain.get("architecture"), str) else "",
        tuple(notes),
    )


def _user(value: Any, notes: list[str]) -> str | None:
    """The image's user if it is a number that is not root's; a name cannot be resolved without the layers."""
    text = value if isinstance(value, str) else ""
    match = _USER.fullmatch(text) if text.isascii() else None
    if match is not None:
        return f"{match[1]}:{match[2] or match[1]}"
    notes.append(
        f"the image's user is {_short(text or 'root')}; a container runs as {USER_DEFAULT} unless the "
        "manifest names another number, and never as root"
    )
    return None


def _ports(exposed: Any, notes: list[str]) -> tuple[ImagePort, ...]:
    if exposed is None:
        return ()
    if not isinstance(exposed, dict):
        notes.append("ExposedPorts is not an object, and is left out")
        return ()
    found = []
    for text in sorted(map(str, exposed)):
        match = _PORT.fullmatch(text) if text.isascii() else None
        if match is None or not 0 < int(match[1]) < 65_536:
            notes.append(f"the port {_short(text)} is not a number from 1 to 65535 with tcp or udp, and is left out")
        else:
            found.append(ImagePort(int(match[1]), match[2] or "tcp"))
    unique = sorted(dict.fromkeys(found), key=lambda each: (each.protocol, each.port))
    if len(unique) > PORTS_MAX:
        notes.append(f"of {len(unique)} ports only the first {PORTS_MAX} are used")
    return tuple(unique[:PORTS_MAX])


def _words(value: Any, name: str, notes: list[str]) -> tuple[str, ...]:
    if value is None:
        return ()
    words = value if isinstance(value, list) else [None]
    fits = all(isinstance(each, str) and "\0" not in each and len(each) <= ARGUMENT_LENGTH_MAX for each in words)
    if not fits or len(words) > ARGUMENTS_MAX:
        notes.append(f"{name} is not a list of at most {ARGUMENTS_MAX} short texts, and is left out")
        return ()
    return tuple(words)


def _health(value: Any, ports: tuple[ImagePort, ...], notes: list[str]) -> HealthCheck | None:
    test = value.get("Test") if isinstance(value, dict) else None
    if not isinstance(test, list) or not test or test[0] == "NONE":
        return None
    text = " ".join(each for each in test[1:] if isinstance(each, str))[:ARGUMENT_LENGTH_MAX]
    found = _FETCH.search(text)
    first = next((each.port for each in ports if each.protocol == "tcp"), None)
    if found is None:
        notes.append("the image's health check runs a command in the container; the manifest probes its port instead")
    port = first if found is None else int(found[1] or 80)
    if port is None or not 0 < port < 65_536:
        return None
    period = _seconds(value.get("Interval"), 10, 3_600)
    return HealthCheck(
        port,
        None if found is None else found[2] or "/",
        period,
        min(_seconds(value.get("Timeout"), 5, 600), period),
        value["Retries"] if type(value.get("Retries")) is int and 0 < value["Retries"] <= 1_000 else 3,
        _seconds(value.get("StartPeriod"), 0, 3_600),
    )


def _seconds(value: Any, default: int, most: int) -> int:
    if type(value) is not int or value <= 0:
        return default
    return min(max(1, value // NANOSECONDS), most)


def _short(value: Any) -> str:
    return ascii(value)[:80]
