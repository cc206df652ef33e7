"""An image of one's own: built with podman, launched by one command, reached, repeated, stopped with a receipt."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from agent.tests.support.busybox_image import BUSYBOX, busybox_image, digest_of
from mooring_agent.containers.podman import Podman
from tests.e2e.trial_process import TrialProcess, trial_directory

pytestmark = pytest.mark.real_part("containers")
READY = "┘"  # the end of the box
IMAGE = f"localhost/mooring-e2e-{os.getpid()}"
CONTAINERFILE = """\
FROM scratch
COPY busybox /bin/busybox
COPY index.html /www/index.html
USER 1001
EXPOSE 8080
HEALTHCHECK --interval=5s CMD /bin/busybox wget -q -O - http://localhost:8080/index.html
ENTRYPOINT ["/bin/busybox"]
CMD ["httpd", "-f", "-p", "8080", "-h", "/www"]
"""


@pytest.fixture(scope="module")
def trial() -> Iterator[TrialProcess]:
    """A platform with a node that isolates, a registry and the workload adapter."""
    if not Podman.on_this_machine() or not BUSYBOX.exists() or shutil.which("docker-registry") is None:
        pytest.skip("it needs root, podman, busybox-static and docker-registry")
    with trial_directory() as started:
        started.start(READY, "--node-host", "namespace")
        yield started


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    """An image in podman's store."""
    shutil.copy(BUSYBOX, tmp_path / "busybox")
    (tmp_path / "Containerfile").write_text(CONTAINERFILE)
    build(tmp_path, "an image of my own")
    yield IMAGE
    subprocess.run(["podman", "rmi", "--force", IMAGE], capture_output=True, check=True)


def build(directory: Path, page: str) -> None:
    (directory / "index.html").write_text(page)
    words = ["podman", "build", "--quiet", "--format", "docker", "--tag", IMAGE, str(directory)]
    subprocess.run(words, capture_output=True, check=True)


def page_of(trial: TrialProcess, instance: str) -> str:
    """The page as a browser gets it through the relay, with the link that works once."""
    link = urlsplit(json.loads(trial.mooring("open", instance, "-o", "json"))["url"])
    with httpx.Client(base_url=f"http://127.0.0.1:{link.port}", headers={"Host": link.netloc}, timeout=60) as browser:
        opened = browser.get(f"{link.path}?{link.query}")
        cookie = opened.headers["set-cookie"].partition(";")[0]
        return browser.get("/", headers={"Cookie": cookie}).text


def layout(directory: Path) -> Path:
    """The same kind of image as an OCI layout, made without any tool."""
    built = busybox_image()
    blobs = directory / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for content in (built.manifest, *built.blobs.values()):
        (blobs / digest_of(content).partition(":")[2]).write_bytes(content)
    (directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (directory / "index.json").write_text(json.dumps({"manifests": [{"digest": built.digest}]}))
    return directory


def test_an_image_of_podman_is_launched_reached_changed_and_stopped(
    trial: TrialProcess, image: str, tmp_path: Path
) -> None:
    words = ("apps", "from-image", image, "--slug", "welcome", "--directory", str(tmp_path / "app"), "--yes")
    assert "wrote" in trial.mooring(*words, "--until", "manifest")
    first = trial.mooring(*words)
    assert "operated by the platform's workload adapter" in first
    assert "welcome is running" in first
    assert page_of(trial, "welcome") == "an image of my own"
    again = trial.mooring(*words)
    assert ("nothing to do for version 0.1.0" in again, "is there already, running" in again) == (True, True)
    build(tmp_path, "the second")
    assert "version 0.1.1, active" in trial.mooring(*words, "--until", "publish")
    trial.mooring("instances", "upgrade", "welcome", "--version", "0.1.1", "--wait")
    assert page_of(trial, "welcome") == "the second"
    lines = trial.mooring("stop", "welcome", "--wait", "--yes", "-o", "json").splitlines()
    proofs = [each for each in map(json.loads, lines) if each.get("kind") == "proof" or "receipt_id" in each]
    receipt = json.loads(trial.mooring("receipts", "get", proofs[-1]["receipt_id"], "-o", "json"))
    assert receipt["clean"], receipt


def test_nothing_is_launched_that_nobody_operates(trial: TrialProcess, tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    stored = json.loads(trial.mooring("workload-adapter", "get", "--context", "try-admin", "-o", "json"))
    set_key = ("workload-adapter", "set-key", "--context", "try-admin", "--from-file", str(path))
    path.write_text(json.dumps({"public_key": None}))
    trial.mooring(*set_key)
    image = str(layout(tmp_path / "layout"))
    words = ("apps", "from-image", image, "--slug", "lonely", "--directory", str(tmp_path / "app"), "--port", "8080")
    assert "nobody operates it" in trial.mooring(*words, "--yes", fails=True)
    before = trial.mooring("allocations", "list", "-o", "json")
    assert "adapter_missing" in trial.mooring("launch", "lonely", fails=True)
    (entry,) = [each for each in json.loads(trial.mooring("catalog", "list", "-o", "json")) if each["slug"] == "lonely"]
    assert [each["obstacle"] for each in entry["hindrances"]] == ["no_adapter"]
    assert trial.mooring("allocations", "list", "-o", "json") == before, "no capacity was requested"
    path.write_text(json.dumps({"public_key": stored["public_key"]}))
    trial.mooring(*set_key)
    manifest = tmp_path / "app" / "manifest.yaml"
    command = "  command: [-c, 'exec httpd -f -p 8080 -h /www']\n"
    manifest.write_text(manifest.read_text().replace("  image: main\n", f"  image: main\n{command}"))
    trial.mooring(*words, "--yes", "--version", "0.2.0")  # the same command continues
    assert page_of(trial, "lonely") == "hello from a container\n"
    trial.mooring("stop", "lonely", "--wait", "--yes")
