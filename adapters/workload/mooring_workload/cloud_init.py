"""Renders a profile for a machine that boots by itself: cloud-init user-data with a systemd unit for the program.

It is for machines with an image of their own and without an agent. The image is named by its digest, and every
downloaded file is compared with its digest before the start. The document contains no secret: everybody on the machine
can read user-data, often also from a metadata service. A program with secrets waits until an operator has written
`/etc/mooring/<app>.secrets` by other means.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from mooring_workload.profile import Volume, WorkloadProfile
from mooring_workload.render import NAME, MemberPlacement, NotRenderable, Rendered, render

HEAD: Final = "#cloud-config\n"
DIRECTORY: Final = "/etc/mooring"
DATA: Final = "/var/lib/mooring"
PLACE: Final = MemberPlacement("machine", "namespace")
REPOSITORY: Final = re.compile(r"[a-z0-9][a-z0-9.:-]*(/[a-z0-9][a-z0-9._-]*)+")
ADDRESS: Final = re.compile(r"https://[A-Za-z0-9.:-]+/[A-Za-z0-9._~!$&()*+,;=:@%/?-]*")
BYTES_MAX: Final = 16_384
"""The limit of several clouds."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a machine gets its artifacts: the repository of the image, URLs of blobs, and small blobs."""

    repository: str | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, bytes] = field(default_factory=dict)


def render_user_data(profile: WorkloadProfile, config: Mapping[str, Any], sources: Sources) -> str:
    """The user-data of a machine that runs this profile; raises `NotRenderable` if something is missing."""
    place = PLACE if profile.image is not None else MemberPlacement(PLACE.member_id, PLACE.host, has_containers=False)
    rendered = render(profile, config, place)
    unit = f"mooring-{profile.app}.service"
    files = [
        _file(f"{DIRECTORY}/{profile.app}.env", _environment(rendered), "0600"),
        *_artifacts(profile, rendered, sources),
        _file(f"/etc/systemd/system/{unit}", _unit(profile, rendered, sources), "0644"),
    ]
    document: dict[str, Any] = {
        "write_files": files,
        "runcmd": [["systemctl", "daemon-reload"], ["systemctl", "enable", "--now", unit]],
    }
    if rendered.runs_as == "container":
        document = {"packages": ["podman"], **document}
    text = HEAD + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=10_000)
    if len(text.encode()) > BYTES_MAX:
        raise NotRenderable(f"the user-data has {len(text.encode())} bytes; the limit is {BYTES_MAX}")
    return text


def _file(path: str, content: str, mode: str) -> dict[str, Any]:
    return {"path": path, "content": content, "permissions": mode, "owner": "root:root"}


def _environment(rendered: Rendered) -> str:
    return "".join(
        f"{name}={_quoted(value)}\n" for name, value in sorted(rendered.start.arguments["environment"].items())
    )


def _quoted(value: str) -> str:
    return '"' + re.sub(r'(["\\`$])', r"\\\1", value) + '"'


def _word(word: str) -> str:
    """Quote a word of a command in a unit: no variables, no specifiers, no line breaks."""
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + plain.replace("%", "%%").replace("$", "$$") + '"'


def _artifacts(profile: WorkloadProfile, rendered: Rendered, sources: Sources) -> list[dict[str, Any]]:
    """The files for the artifacts of volumes: written directly, or downloaded and verified by a script."""
    files, lines = [], ["#!/bin/sh", "set -eu"]
    for volume in profile.volumes:
        role = volume.artifact or ""
        if volume.kind != "artifact":
            continue
        place = _on_machine(profile, rendered, volume)
        if role in sources.contents:
            content = base64.b64encode(sources.contents[role]).decode("ascii")
            files.append({**_file(f"{place}/{role}", content, "0555"), "encoding": "b64"})
        elif ADDRESS.fullmatch(address := sources.addresses.get(role, "")):
            digest = profile.artifacts[role].partition(":")[2]
            lines += [
                f"mkdir -p '{place}'",
                f"curl --fail --silent --show-error --proto '=https' --output '{place}/{role}.new' '{address}'",
                f"echo '{digest}  {place}/{role}.new' | sha256sum --check --quiet -",
                f"mv '{place}/{role}.new' '{place}/{role}'",
            ]
        else:
            raise NotRenderable(
                f"the artifact {role!r} is missing: give --address {role}=https://…, or --content {role}=FILE"
            )
    if len(lines) > 2:
        files.append(_file(_script(profile), "\n".join([*lines, ""]), "0755"))
    return files


def _script(profile: WorkloadProfile) -> str:
    return f"/usr/local/libexec/mooring-fetch-{profile.app}"


def _on_machine(profile: WorkloadProfile, rendered: Rendered, volume: Volume) -> str:
    """A volume's directory on the machine: a service uses the manifest's path, a container gets it mounted."""
    if rendered.runs_as == "service":
        return volume.path.rstrip("/")
    return f"{DATA}/{profile.app}/{volume.name}"


def _unit(profile: WorkloadProfile, rendered: Rendered, sources: Sources) -> str:
    fetches = any(each.kind == "artifact" and each.artifact not in sources.contents for each in profile.volumes)
    start = _container(profile, rendered, sources) if rendered.runs_as == "container" else _service(rendered)
    secret = f"{DIRECTORY}/{profile.app}.secrets"
    lines = [
        "[Unit]",
        f"Description={profile.app} {profile.version}",
        "After=network-online.target",
        "Wants=network-online.target",
        *([f"AssertPathExists={secret}"] if rendered.secrets else []),
        "",
        "[Service]",
        f"EnvironmentFile={DIRECTORY}/{profile.app}.env",
        *([f"EnvironmentFile={secret}"] if rendered.secrets else []),
        *([f"ExecStartPre={_script(profile)}"] if fetches else []),
        *start,
        "Restart=on-failure",
        "RestartSec=2",
        f"TimeoutStartSec={max(profile.startup_seconds, 60)}",
        f"TimeoutStopSec={profile.grace_seconds + 10}",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
    ]
    return "\n".join(lines)


def _service(rendered: Rendered) -> list[str]:
    words = [*rendered.start.arguments["argv"]]
    program = words[0] if words[0].startswith("/") else "/usr/bin/env"
    command = words if program == words[0] else [program, *words]
    directories = [f"StateDirectory=mooring/{NAME}", "DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict"]
    return [f"ExecStart={' '.join(_word(each) for each in command)}", *directories]


def _container(profile: WorkloadProfile, rendered: Rendered, sources: Sources) -> list[str]:
    if sources.repository is None or not REPOSITORY.fullmatch(sources.repository):
        raise NotRenderable("the image's repository is missing: give --repository registry/name, without a tag")
    wanted = rendered.start.arguments
    name = f"mooring-{profile.app}"
    words = [
        "/usr/bin/podman",
        "run",
        "--rm",
        "--replace",
        "--name",
        name,
        "--read-only",
        "--cap-drop",
        "ALL",
        "--security-opt",
        "no-new-privileges",
        "--user",
        "1000:1000",
        "--network",
        "host",
        "--init",
    ]
    names = [*wanted["environment"], *wanted.get("environment_secrets", {})]
    words += [word for each in sorted(names) for word in ("--env", each)]
    words += [word for path in wanted["temporary"] for word in ("--tmpfs", path)]
    before = []
    for mount in wanted.get("mounts", ()):
        place = f"{DATA}/{profile.app}/{mount['volume']}"
        before += [f"ExecStartPre=/usr/bin/install -d -o 1000 -g 1000 {_word(place)}"]
        words += ["--volume", f"{place}:{mount['target']}:{'ro' if mount.get('read_only') else 'rw'}"]
    for option, key in (("--cpus", "cpus"), ("--memory", "memory_bytes"), ("--pids-limit", "pids")):
        if key in wanted:
            words += [option, f"{wanted[key]:g}" if key == "cpus" else str(wanted[key])]
    image = f"{sources.repository}@{profile.artifacts[profile.image or '']}"
    start = " ".join(_word(each) for each in (*words, image, *wanted.get("argv", ())))
    stop = f"ExecStop=/usr/bin/podman stop --time {profile.grace_seconds} {name}"
    return [*before, f"ExecStart={start}", stop]
