"""The lint rules for how members are started and reached: images, ports, environment, probes, volumes, endpoints."""

import re
import string
from collections.abc import Iterator, Mapping
from typing import Final

from mooring.core.catalog.manifest import (
    PROXY,
    Manifest,
    ManifestEndpoint,
    ManifestProbe,
    ManifestVolume,
    Metering,
    RuntimeProfile,
)
from mooring.core.kernel.finding import Finding, below, error, warning
from mooring.core.kernel.sandbox_user import is_root

RUNTIME_RULES: Final[Mapping[str, str]] = {
    "image_missing": "The image that is started must be one of the artifacts.",
    "artifact_unknown": "An artifact must be referred to by its role in `artifacts`.",
    "tag_in_text": "A tag can move to other bytes; only a digest is unambiguous.",
    "runtime_name_doubled": "Names, ports and paths that are used twice are ambiguous.",
    "port_unknown": "A port must be declared in `runtime_profile.ports`.",
    "metering_unit": "A counter must count a unit of `usage_units` that nothing else counts.",
    "endpoint_port_missing": "Without an adapter that reports its address, an endpoint must name its port.",
    "endpoint_terminal": "An endpoint of protocol `terminal` has a user, who is not root, and no port.",
    "probe_incomplete": "A probe must have everything that its kind needs.",
    "probe_timing": "The attempts of a probe overlap when the time-out is longer than the period.",
    "readiness_missing": "Without a readiness probe the platform cannot tell when the app accepts work.",
    "volume_path": "A mount must not hide the sandbox's own directories.",
    "volume_incomplete": "A volume must say what is in it.",
    "secret_in_env": "Many people can read a manifest, so secrets must come from the platform's secrets.",
    "config_unknown": "A variable from the configuration must name a field of the form.",
    "connect_incomplete": "A way to connect must say what to open or run.",
}

_SECRET_NAME: Final = re.compile(r".*(PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|PRIVATE_?KEY|CREDENTIALS?)", re.IGNORECASE)
_TAGGED_IMAGE: Final = re.compile(
    r"(?:docker://)?[a-z0-9][a-z0-9.-]*(?::[0-9]{1,5})?(?:/[a-z0-9._-]+)+:[A-Za-z0-9_][\w.-]{0,127}"
)
_NEVER_MOUNTED: Final = frozenset(
    {"/", "/bin", "/boot", "/etc", "/lib", "/lib64", "/root", "/run", "/sbin", "/usr", "/var"}
)
_NEVER_MOUNTED_BELOW: Final = ("/proc", "/sys", "/dev")
_PLACEHOLDERS: Final = frozenset({"host", "port", "url"})


def runtime_findings(manifest: Manifest) -> Iterator[Finding]:
    """The findings about how members are started and reached."""
    profile = manifest.runtime_profile or RuntimeProfile()
    yield from _image(manifest, profile)
    yield from _doubled(profile)
    yield from _environment(manifest, profile)
    yield from _texts(profile)
    ports = {port.name for port in profile.ports}
    for name, probe in profile.probes.items():
        yield from _probe(probe, below("/runtime_profile/probes", name), ports)
    for index, volume in enumerate(profile.volumes):
        yield from _volume(volume, below("/runtime_profile/volumes", index), manifest)
    for index, endpoint in enumerate(manifest.endpoints):
        yield from _endpoint(endpoint, below("/endpoints", index), manifest, ports)
    for index, metering in enumerate(manifest.metering):
        yield from _metering(metering, below("/metering", index), manifest, ports)


def _image(manifest: Manifest, profile: RuntimeProfile) -> Iterator[Finding]:
    controller = manifest.artifact_kind == "controller"
    if profile.image is None and not controller:
        reason = f"a version of kind {manifest.artifact_kind} needs an image to start"
        yield error("/runtime_profile", "image_missing", reason, "name its role in `runtime_profile.image`")
    elif profile.image is not None and profile.image not in manifest.artifacts:
        yield _unknown_artifact(profile.image, "/runtime_profile/image", manifest)
    if manifest.artifact_kind == "launchable" and "readiness" not in profile.probes:
        reason = "the app counts as ready as soon as it is started"
        yield warning("/runtime_profile", "readiness_missing", reason, "add `probes.readiness`")


def _doubled(profile: RuntimeProfile) -> Iterator[Finding]:
    for section, names in (
        ("ports", [each.name for each in profile.ports]),
        ("ports", [f"{each.port}/{each.protocol}" for each in profile.ports]),
        ("env", [each.name for each in profile.env]),
        ("volumes", [each.name for each in profile.volumes]),
        ("volumes", [each.path.rstrip("/") for each in profile.volumes]),
    ):
        for index, name in enumerate(names):
            if name in names[:index]:
                place = below("/runtime_profile", section, index)
                yield error(place, "runtime_name_doubled", f"{name!r} is used twice", "keep one of them")


def _environment(manifest: Manifest, profile: RuntimeProfile) -> Iterator[Finding]:
    fields: Mapping[str, Mapping[str, object]] = (manifest.config_schema or {}).get("properties", {})
    for index, each in enumerate(profile.env):
        place = below("/runtime_profile/env", index)
        if each.value and _SECRET_NAME.fullmatch(each.name):
            reason = f"{each.name} has the name of a secret, but its value is in the manifest"
            yield error(place, "secret_in_env", reason, "use `from_secret`, or `from_config` with a `writeOnly` field")
        if each.from_config is None:
            continue
        if each.from_config not in fields:
            reason = f"`config_schema` has no field {each.from_config!r}"
            yield error(
                below(place, "from_config"), "config_unknown", reason, "describe the field, or correct the name"
            )
        elif fields[each.from_config]["type"] in ("object", "array"):
            reason = f"{each.from_config!r} is not a single value"
            yield error(below(place, "from_config"), "config_unknown", reason, "use a text, number or boolean")


def _texts(profile: RuntimeProfile) -> Iterator[Finding]:
    texts = [(below("/runtime_profile/command", index), text) for index, text in enumerate(profile.command)]
    texts += [
        (below("/runtime_profile/env", i, "value"), each.value) for i, each in enumerate(profile.env) if each.value
    ]
    for place, text in texts:
        if _TAGGED_IMAGE.fullmatch(text):
            reason = f"{text[:100]!r} looks like an image named by a tag"
            yield warning(place, "tag_in_text", reason, "name it by its digest: repository@sha256:…")


def _probe(probe: ManifestProbe, place: str, ports: set[str]) -> Iterator[Finding]:
    if probe.kind in ("tcp", "http") and probe.port is None:
        yield error(place, "probe_incomplete", f"a probe of kind {probe.kind} needs a port", "add `port`")
    if probe.kind == "exec" and not probe.command:
        yield error(place, "probe_incomplete", "a probe of kind exec needs a command", "add `command`")
    if (probe.path is not None and probe.kind != "http") or (probe.command and probe.kind != "exec"):
        reason = f"a probe of kind {probe.kind} does not use the given path or command"
        yield error(place, "probe_incomplete", reason, "remove it, or change the kind")
    if probe.port is not None and probe.port not in ports:
        yield _unknown_port(probe.port, below(place, "port"), ports)
    if probe.timeout_seconds > probe.period_seconds:
        reason = f"the time-out of {probe.timeout_seconds} s is longer than the period of {probe.period_seconds} s"
        yield warning(place, "probe_timing", reason, "make the time-out at most the period")


def _volume(volume: ManifestVolume, place: str, manifest: Manifest) -> Iterator[Finding]:
    path = volume.path.rstrip("/") or "/"
    segments = path.split("/")[1:]
    if path in _NEVER_MOUNTED or any(path == each or path.startswith(f"{each}/") for each in _NEVER_MOUNTED_BELOW):
        yield error(
            below(place, "path"), "volume_path", f"{path!r} belongs to the sandbox itself", "mount it elsewhere: /data"
        )
    if path != "/" and any(segment in ("", ".", "..") for segment in segments):
        yield error(
            below(place, "path"), "volume_path", f"{path!r} has empty or dot segments", "write the path without them"
        )
    if volume.kind == "artifact" and volume.artifact is None:
        yield error(place, "volume_incomplete", "a volume of kind artifact needs content", "name a role in `artifact`")
    if volume.kind == "scratch" and volume.artifact is not None:
        yield error(
            place, "volume_incomplete", "a scratch volume starts empty", "remove `artifact`, or change the kind"
        )
    if volume.artifact is not None and volume.artifact not in manifest.artifacts:
        yield _unknown_artifact(volume.artifact, below(place, "artifact"), manifest)


def _endpoint(endpoint: ManifestEndpoint, place: str, manifest: Manifest, ports: set[str]) -> Iterator[Finding]:
    if endpoint.port is not None and endpoint.port not in ports:
        yield _unknown_port(endpoint.port, below(place, "port"), ports)
    if endpoint.protocol == "terminal":
        yield from _terminal(endpoint, place)
    elif endpoint.user is not None:
        reason = f"an endpoint of protocol {endpoint.protocol} has no user"
        yield error(below(place, "user"), "endpoint_terminal", reason, "remove `user`, or use `terminal`")
    elif endpoint.port is None and manifest.artifact_kind != "controller":
        reason = f"{endpoint.name!r} does not name its port"
        yield error(place, "endpoint_port_missing", reason, "add `port`")
    for index, connect in enumerate(endpoint.connect):
        connect_place = below(place, "connect", index)
        if connect.kind == "browser" and endpoint.protocol not in ("http", "https"):
            reason = f"a browser cannot open an endpoint of protocol {endpoint.protocol}"
            yield error(connect_place, "connect_incomplete", reason, "use the kind `command`")
        if connect.kind == "command" and not connect.template:
            yield error(connect_place, "connect_incomplete", "the kind `command` needs a command", "add `template`")
        if connect.template and (unknown := _unknown_placeholders(connect.template)):
            reason = f"{unknown!r} is not a known placeholder"
            yield error(below(connect_place, "template"), "connect_incomplete", reason, "use {host}, {port} and {url}")


def _terminal(endpoint: ManifestEndpoint, place: str) -> Iterator[Finding]:
    for name in ("port", "path"):
        if getattr(endpoint, name) is not None:
            reason = f"a terminal runs commands and has no {name}"
            yield error(below(place, name), "endpoint_terminal", reason, f"remove `{name}`")
    if endpoint.user is not None and is_root(endpoint.user):
        yield error(
            below(place, "user"),
            "endpoint_terminal",
            "the user of a terminal must not be root",
            "name another user: app",
        )


def _unknown_placeholders(template: str) -> str | None:
    try:
        parts = [part[1:] for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError:
        return template[:100]
    wrong = [name for name, spec, conversion in parts if name not in _PLACEHOLDERS or spec or conversion]
    return str(wrong[0]) if wrong else None


def _metering(metering: Metering, place: str, manifest: Manifest, ports: set[str]) -> Iterator[Finding]:
    if metering.port not in ports:
        yield _unknown_port(metering.port, f"{place}/port", ports)
    units = {each.unit for each in manifest.usage_units}
    proxied = {each.unit for each in manifest.usage_units if each.counted_by == PROXY}
    for index, counter in enumerate(metering.counters):
        if counter.unit not in units:
            where = below(f"{place}/counters", index, "unit")
            yield error(where, "metering_unit", f"`usage_units` has no {counter.unit!r}", "add it there")
        elif counter.unit in proxied:
            reason = f"the platform's proxy counts {counter.unit!r} already: one use has one source"
            yield error(where, "metering_unit", reason, "count another unit, or leave out `counted_by`")


def _unknown_artifact(role: str, place: str, manifest: Manifest) -> Finding:
    roles = ", ".join(manifest.artifacts)
    return error(place, "artifact_unknown", f"`artifacts` has no role {role!r}", f"use one of {roles}, or add it")


def _unknown_port(name: str, place: str, ports: set[str]) -> Finding:
    known = f"use one of {', '.join(sorted(ports))}" if ports else "declare it there"
    return error(place, "port_unknown", f"`runtime_profile.ports` has no {name!r}", known)
