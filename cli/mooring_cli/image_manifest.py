"""The manifest of an app that is made of an image, as text with comments: the developer goes on with it."""

import re
from typing import Any

import yaml

from mooring_cli.image_config import HealthCheck, ImageConfig, ImagePort, ImageRefused

REQUIRED_ACTIONS = ["runtime.claim", "runtime.report", "task.create"]
HEAD = """\
# The manifest of one version, made from an image by `mooring apps from-image`. It is yours to change.
# `mooring manifest explain` says what each field means.
"""
PAGE = "page"
SLUG_LENGTH_MAX = 40


def slug_of(reference: str) -> str:
    """A slug from the name of an image: its last word, without tag and digest."""
    name = reference.rstrip("/").partition("@")[0].rpartition("/")[2].partition(":")[0]
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:SLUG_LENGTH_MAX].strip("-")
    if len(slug) < 3 or not slug[0].isalpha():
        raise ImageRefused(f"no slug can be made of {ascii(reference)[:200]}; give --slug")
    return slug


def new_version(version: str) -> str:
    """The next patch."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        raise ImageRefused(f"the image changed, and {ascii(version)[:60]} has no next patch; give --version")
    return f"{match[1]}.{match[2]}.{int(match[3]) + 1}"


def with_image(text: str, role: str, digest: str, version: str) -> str:
    """The manifest with another digest and version; everything else, comments included, stays."""
    text, digests = re.subn(rf"(?m)^(\s+{role}:\s*)['\"]?sha256:[0-9a-f]{{64}}['\"]?", rf"\g<1>{digest}", text)
    text, versions = re.subn(r"(?m)^(version:\s*)\S+", rf"\g<1>{version}", text)
    stored = yaml.safe_load(text)
    if (digests, versions) != (1, 1) or stored["artifacts"][role] != digest or str(stored["version"]) != version:
        raise ImageRefused(f"write version {version} and {role}: {digest} into the manifest yourself")
    return text


def manifest_text(
    slug: str,
    version: str,
    digest: str,
    config: ImageConfig,
    *,
    port: int | None,
    protocol: str,
    path: str | None,
) -> str:
    """The manifest of a new app."""
    document: dict[str, Any] = {
        "manifest_version": 1,
        "app": slug,
        "version": version,
        "artifact_kind": "launchable",
        "artifacts": {"main": digest},
        "required_actions": REQUIRED_ACTIONS,
        "runtime_profile": _profile(config, port, protocol, path),
    }
    page = _page(config.ports, port)
    if page is not None:
        document["endpoints"] = [{"name": PAGE, "protocol": protocol, "port": PAGE}]
    document["lifecycle"] = {
        "upgrade": {"strategy": "in_place", "from_versions": [">=0.0.0"]},
        "rollback": {"supported": True, "to_versions": [">=0.0.0"]},
        "delete": {"data": "removed"},
    }
    return HEAD + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110)


def _page(ports: tuple[ImagePort, ...], port: int | None) -> int | None:
    return port or next((each.port for each in ports if each.protocol == "tcp"), None)


def _profile(config: ImageConfig, port: int | None, protocol: str, path: str | None) -> dict[str, Any]:
    profile: dict[str, Any] = {"image": "main"}
    if config.arguments:
        profile["command"] = list(config.arguments)
    if config.numeric_user is not None:
        profile["user"] = config.numeric_user
    page = _page(config.ports, port)
    ports: list[dict[str, Any]] = [] if page is None else [{"name": PAGE, "port": page}]
    ports += [
        {"name": f"{each.protocol}-{each.port}", "port": each.port, "protocol": each.protocol}
        for each in config.ports
        if (each.port, each.protocol) != (page, "tcp")
    ]
    if ports:
        profile["ports"] = ports
    probe = _probe(config.health, {each["port"]: each["name"] for each in ports}, page, protocol, path)
    if probe is not None:
        profile["probes"] = {"readiness": probe}
    return profile


def _probe(
    health: HealthCheck | None, names: dict[int, str], page: int | None, protocol: str, path: str | None
) -> dict[str, Any] | None:
    """How the app is observed: the image's health check if it fetches a page of a declared port, else the page."""
    if page is None:
        return None
    if path is not None:
        return {"kind": "http", "port": PAGE, "path": path}
    probe: dict[str, Any] = {"kind": "tcp", "port": PAGE}
    if health is None:
        return probe
    if health.path is not None and health.port in names:
        probe = {"kind": "http", "port": names[health.port], "path": health.path}
    probe |= {"period_seconds": health.period_seconds, "timeout_seconds": health.timeout_seconds}
    return probe | {"failures_max": health.failures_max, "initial_delay_seconds": health.start_seconds}
