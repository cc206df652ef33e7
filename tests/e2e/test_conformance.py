"""The promises of an adapter, played on the real platform by the same scenarios as on the simulated one.

So both agree: what an adapter's author sees in `mooring adapter test` is what the server does. One Mooring for all;
the scenarios run side by side in lanes, each a tenant with an adapter process and machines of its own.
"""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mooring_adapter.conformance.report import KEPT, NOT_PLAYED, PromiseResult
from mooring_adapter.conformance.scenarios import Promise
from mooring_adapter.conformance.suite import check_promise, promises, read_profile
from mooring_sdk import Client
from server.tests.support.postgres import SOAK
from tests.e2e.agent_platform import PATIENT
from tests.e2e.mooring_process import FIRST_ADMIN, PASSWORD, running_mooring
from tests.e2e.real_platform import REASON, RealPlatform, SharedPlatform

pytestmark = pytest.mark.real_part("postgresql")
PART = Path(__file__).resolve().parents[2] / "adapters" / "echo"
COMMAND = (sys.executable, "-m", "mooring_echo")
SMALL = {"seed": 1, "worker": 2, "gate": 1}
LANES = 3
PATIENCE_SECONDS = 120.0
SETTINGS = {
    "MOORING_ADAPTER_LEASE_SECONDS": "4",
    "MOORING_TOKEN_CACHE_SECONDS": "0",
}
SIMULATED_ALONE = {
    "clock_skew": "this platform cannot play clock",
    "forbidden": "this platform cannot play permissions",
}
"""What stays for the simulated platform, and why."""
OFTEN = frozenset({
    "deploy", "drain", "remove", "replace", "upgrade", "configure", "actions", "cancel", "reordered", "lost_replies",
    "stale_lease", "node_loss", "token_expiry", "clock_skew", "forbidden", "other_project", "crash", "graceful",
})  # fmt: skip
"""What `make test` plays here: where the platform's own rules decide most. `make soak` plays every promise."""
PROMISES = [each for each in promises(every_crash=SOAK) if SOAK or each.key in OFTEN]


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PART / name).read_text(encoding="utf-8"))
    return found


def offered(admin: Client, manifests: list[dict[str, Any]]) -> str:
    """The app in the platform's catalog, in these versions; its id."""
    admin.create_platform_artifact_source(name="echo", pattern="file:echo_node.py")
    digest = manifests[0]["artifacts"]["script"]
    artifact = admin.register_platform_artifact(kind="blob", location="file:echo_node.py", digest=digest)
    app = admin.create_platform_app(slug="echo", display_name="Echo", category="web")
    versions = [admin.create_platform_version(app.id, manifest=each) for each in manifests]
    for move in ("stage", "canary", "activate"):
        admin.promote_platform_artifact(artifact.id, move=move, reason=REASON)
        for version in versions:
            share = 100.0 if move == "canary" else None
            admin.promote_platform_version(app.id, version.id, move=move, reason=REASON, canary_percentage=share)
    return app.id


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedPlatform]:
    place = tmp_path_factory.mktemp("conformance")
    (place / "echo_node.py").write_bytes((PART / "mooring_echo" / "echo_node.py").read_bytes())
    profile = read_profile(read("manifest.json"))
    with running_mooring(MOORING_SOURCE_FILE_DIRECTORY=str(place), **SETTINGS) as mooring:
        with Client(mooring.url, settings=PATIENT) as door:
            token = door.sign_in(email=FIRST_ADMIN, one_time_code=mooring.code, new_password=PASSWORD).token
        with Client(mooring.url, token=token, settings=PATIENT) as admin:
            app_id = offered(admin, [profile.manifest, profile.next_manifest])
            yield SharedPlatform(mooring, admin, token, app_id, place)


def lane(shared: SharedPlatform, number: int) -> RealPlatform:
    details = read("conformance.json") | {"patience_seconds": PATIENCE_SECONDS} | ({} if SOAK else {"topology": SMALL})
    return RealPlatform(shared, read_profile(read("manifest.json"), details), COMMAND, f"lane-{number}")


class ConformanceRun:
    """The promises that wait, and the verdicts so far."""

    def __init__(self, shared: SharedPlatform) -> None:
        self.shared = shared
        self.waiting: list[Promise] = [*PROMISES]
        self.verdicts: dict[str, PromiseResult] = {}
        self.proofs: list[tuple[str | None, bool]] = []  # of each instance, and whether it lost a machine
        self.lock = threading.Lock()

    def work(self, number: int) -> None:
        """One lane: take what waits, the longest ones first, and play it."""
        platform = lane(self.shared, number)
        try:
            while (each := self._next()) is not None:
                self.verdicts[each.key] = check_promise(platform, each)
                platform.clear()
            self.proofs += [(each.teardown_proof, each.id in platform.bereft) for each in platform.all_stopped()]
        finally:
            platform.close()

    def _next(self) -> Promise | None:
        with self.lock:
            return self.waiting.pop() if self.waiting else None


@pytest.fixture(scope="module")
def played(shared: SharedPlatform) -> ConformanceRun:
    """Everything, side by side."""
    play = ConformanceRun(shared)
    lanes = [threading.Thread(target=play.work, args=(number,)) for number in range(LANES)]
    for each in lanes:
        each.start()
    for each in lanes:
        each.join()
    return play


@pytest.mark.parametrize("key", [each.key for each in PROMISES if each.key not in SIMULATED_ALONE])
def test_the_promise_is_kept_on_the_real_platform(played: ConformanceRun, key: str) -> None:
    verdict = played.verdicts[key]
    assert verdict.verdict == KEPT, f"{verdict.reason}\n" + "\n".join(verdict.last_lines)


@pytest.mark.parametrize("key", SIMULATED_ALONE)
def test_what_the_real_platform_cannot_play_says_why(played: ConformanceRun, key: str) -> None:
    verdict = played.verdicts[key]
    assert (verdict.verdict, verdict.reason) == (NOT_PLAYED, SIMULATED_ALONE[key])


def test_whatever_was_done_to_them_every_instance_ends_with_its_proof(played: ConformanceRun) -> None:
    assert len(played.proofs) > len(PROMISES)
    assert {proof for proof, _ in played.proofs} == {"receipts", "written_off"}
    # One that was still being torn down on the machine that was lost is written off too.
    assert all(lost_a_machine for proof, lost_a_machine in played.proofs if proof == "written_off")
