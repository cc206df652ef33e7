"""A tenant's private registry: the agent of a node pulls with what a secret of the project gives it.

A tenant's source must be on the internet. So the platform with its node stands in one network namespace, the registry
with its token service in another, with addresses that are public but belong to nobody (RFC 7535); what is sent to them
stays on the bridge between the two.
"""

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.tests.support.busybox_image import BUSYBOX, busybox_image, push
from mooring_agent.containers.podman import Podman
from mooring_agent.hosts.namespace.project_network import run_inside
from server.tests.support.registry_process import running_registry
from server.tests.support.token_service import PASSWORD, USER, running_token_service
from tests.e2e.network_namespaces import NAMESPACES, network_namespaces
from tests.e2e.test_from_image import page_of
from tests.e2e.trial_process import TrialProcess, trial_directory
from tests.support.certificates import TestAuthority

pytestmark = [pytest.mark.real_part("containers"), pytest.mark.real_part("registry")]
SUBNET = "192.31.196"
REPOSITORY = "team/app"
MANIFEST = """\
manifest_version: 1
app: inhouse
version: 0.1.0
artifact_kind: oci
required_actions: [runtime.claim, runtime.report, task.create]
runtime_profile:
  image: main
  command: ["-c", "exec httpd -f -p 8080 -h /www"]
  ports: [{name: web, port: 8080}]
endpoints: [{name: web, protocol: http, port: web}]
"""


@dataclass(frozen=True)
class PrivatePlace:
    """A trial, and a registry that lets nobody in without a token."""

    trial: TrialProcess
    namespace: str
    image: str
    token_host: str


@pytest.fixture
def place(tmp_path: Path) -> Iterator[PrivatePlace]:
    if not Podman.on_this_machine() or not BUSYBOX.exists() or shutil.which("docker-registry") is None:
        pytest.skip("it needs root, podman, busybox-static and docker-registry")
    image, authority = busybox_image(), TestAuthority(tmp_path)
    with running_registry(tmp_path) as filling:
        push(filling.url, REPOSITORY, image)
    with ExitStack() as stack:
        here, there = stack.enter_context(network_namespaces(2, subnet=SUBNET))
        files = authority.issue(names=(there.address,))
        listening = run_inside(str(NAMESPACES / there.name), lambda: socket.create_server((there.address, 0)))
        tokens = stack.enter_context(running_token_service(tmp_path, files, listening))
        started = stack.enter_context(
            running_registry(
                tmp_path, tokens.auth, tls=files, address=there.address, command_prefix=there.command_prefix
            )
        )
        trial = stack.enter_context(trial_directory(command_prefix=here.command_prefix))
        trial.variables["SSL_CERT_FILE"] = str(authority.ca_file)
        trial.start("┘", "--node-host", "namespace")
        location = f"oci://{started.authority}/{REPOSITORY}@{image.digest}"
        yield PrivatePlace(trial, str(NAMESPACES / here.name), location, tokens.host)


def test_a_node_pulls_from_a_private_registry_with_the_projects_secret(place: PrivatePlace, tmp_path: Path) -> None:
    trial, bundle = place.trial, tmp_path / "inhouse"
    bundle.mkdir()
    (bundle / "manifest.yaml").write_text(MANIFEST)
    contents = {"bundle_format": 1, "manifest": "manifest.yaml", "references": {"main": place.image}}
    (bundle / "bundle.yaml").write_text(json.dumps(contents))
    (tmp_path / "password").write_text(PASSWORD)
    trial.mooring("secrets", "create", "--name", "registry", "--value-file", str(tmp_path / "password"))
    trial.mooring("apps", "create", "--slug", "inhouse", "--display-name", "Inhouse", "--category", "web")
    publish = ("publish", str(bundle), "--promote", "active")
    assert "source_denied" in trial.mooring(*publish, fails=True)
    pattern = f"{place.image.rpartition('/team')[0]}/*"
    allow = ("artifact-sources", "create", "--name", "inhouse", "--pattern", pattern)
    credential = ("--credential-username", USER, "--credential-secret", "registry")
    trial.mooring(*allow, *credential, "--credential-token-host", place.token_host)
    trial.mooring(*publish)
    agreed = [word for key in ("runtime.claim", "runtime.report", "task.create") for word in ("--agreed-action", key)]
    trial.mooring("entitlements", "create", "--app", "inhouse", "--reason", "the team asked for it", *agreed)
    trial.mooring("launch", "inhouse", "--name", "page", "--wait")
    assert run_inside(place.namespace, lambda: page_of(trial, "page")) == "hello from a container\n"

    (tmp_path / "password").write_text("a wrong one")
    trial.mooring("secrets", "rotate", "registry", "--value-file", str(tmp_path / "password"))
    trial.mooring("launch", "inhouse", "--name", "refused", "--wait", fails=True)
    assert "registry_auth_refused" in trial.mooring("why", "refused")
    for each in ("refused", "page"):
        trial.mooring("stop", each, "--wait", "--yes")
    written = subprocess.run(["grep", "-rlF", PASSWORD, str(trial.data)], capture_output=True, text=True, check=False)
    assert written.stdout == "", "the password is in no file of server, adapter and agent"
