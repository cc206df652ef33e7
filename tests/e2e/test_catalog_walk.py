"""The way of an app by the command alone: from the intent to publish to its retirement, on a real registry."""

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from mooring.core.catalog.artifact_hold import drop_holds, take_holds
from mooring.core.catalog.artifact_promotion import Hold
from mooring.core.catalog.channel import is_in_canary
from mooring.core.kernel.ids import Prefix
from mooring.embedded.cluster import ClusterLayout
from mooring.gateways.signing.cosign_keys import new_signing_key
from mooring.storage.catalog import artifact as artifacts
from mooring.storage.kernel.database import Acting, Database, PoolSettings
from mooring.storage.kernel.unit_of_work import apply
from server.tests.support.lifecycle_rows import context
from server.tests.support.postgres import SOAK
from tests.e2e.registry_platform import WHY, RegistryPlatform, running_registry_platform

pytestmark = [pytest.mark.real_part("registry"), pytest.mark.real_part("postgresql")]

ENDED = ("--no-successor-because", "nobody needs it any more")


AGREED = tuple(
    word for each in ("runtime.claim", "runtime.report", "task.create") for word in ("--agreed-action", each)
)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryPlatform]:
    with running_registry_platform(tmp_path_factory.mktemp("walk"), MOORING_PROMOTION_GRACE_DAYS="0") as made:
        made.settle("harbour")
        made.equip()
        made.did("workload-adapter", "set-key", "--generate-key", str(made.home / "workload.key"), context="platform")
        made.is_quick = True
        yield made


def entry(platform: RegistryPlatform, slug: str) -> dict[str, Any]:
    """An app as the project sees it."""
    (found,) = [each for each in platform.did("catalog", "list", "--project", "vision") if each["slug"] == slug]
    return dict(found)


def codes(platform: RegistryPlatform, slug: str) -> list[str]:
    """The codes of what hinders the project from launching an app."""
    return [each["code"] for each in entry(platform, slug)["hindrances"]]


def active(platform: RegistryPlatform, slug: str, number: str = "1.0.0") -> tuple[str, str, str]:
    """A new app with an active version on an active artifact of its own: their ids, and the artifact's digest."""
    pushed = platform.pushed()
    app_id = platform.app(slug)
    version_id = platform.version(slug, number, pushed.digest)
    for move in ("stage", "canary", "activate"):
        assert platform.move(pushed.id, move).exit_code == 0
        share = ("--canary-percentage", "10") if move == "canary" else ()
        assert platform.move_version(slug, number, move, *share).exit_code == 0
    return app_id, version_id, pushed.digest


@pytest.fixture
def by_processes(platform: RegistryPlatform) -> Iterator[RegistryPlatform]:
    """The platform; in `make soak` every command runs as a process, as for a user, which takes longer."""
    platform.is_quick = not SOAK
    yield platform
    platform.is_quick = True


def test_from_the_intent_to_publish_to_retirement(by_processes: RegistryPlatform) -> None:
    platform, key = by_processes, new_signing_key()
    pushed = platform.pushed("greeter")
    assert pushed.repository == f"{platform.tenant_id}/greeter"
    platform.trusted(key, "release")
    platform.signed(pushed, key)
    verified = platform.did("artifacts", "verify", pushed.digest)
    assert (verified["id"], verified["trust"], verified["promotion"]) == (pushed.id, "verified", "draft")
    evidence = platform.did("artifacts", "evidence", pushed.digest)["evidence"]
    assert key.trusted("").fingerprint in {each["key_fingerprint"] for each in evidence}

    platform.app("greeter")
    version_id = platform.version("greeter", "1.0.0", pushed.digest)
    for move in ("stage", "canary"):
        moved = ("greeter", "1.0.0", move, "--canary-percentage", "10")
        assert platform.move_version(*moved).code == "version_ahead_of_artifact"
        assert platform.move(pushed.digest, move).exit_code == 0
        assert platform.move_version(*moved).exit_code == 0
    assert platform.did("apps", "versions", "get", "greeter", "1.0.0")["canary_percentage"] == 10.0
    platform.did("entitlements", "create", "--project", "vision", "--app", "greeter", "--reason", WHY, *AGREED)
    among_the_first = is_in_canary(version_id, platform.project_id, Decimal(10))
    assert codes(platform, "greeter") == ([] if among_the_first else ["version_not_offered"])
    everybody = platform.move_version("greeter", "1.0.0", "canary", "--canary-percentage", "100").data
    assert (everybody["status"], everybody["canary_percentage"]) == ("canary", 100.0)
    assert entry(platform, "greeter")["launchable"] is True

    assert platform.move(pushed.digest, "activate").data["promotion"] == "active"
    assert platform.move_version("greeter", "1.0.0", "activate").data["status"] == "active"
    assert entry(platform, "greeter")["version"]["id"] == version_id
    assert platform.move_version("greeter", "1.0.0", "deprecate", *ENDED).data["status"] == "deprecated"
    assert codes(platform, "greeter") == ["version_deprecated"]
    assert platform.move(pushed.digest, "deprecate", *ENDED).data["promotion"] == "deprecated"

    unused = platform.pushed()  # which no version holds back
    for move in ("stage", "canary", "activate"):
        platform.moved(unused.id, move)
    platform.moved(unused.id, "deprecate", *ENDED)
    platform.restarted(MOORING_PROMOTION_GRACE_DAYS="30")
    assert platform.move_version("greeter", "1.0.0", "retire").code == "grace_period"
    assert platform.move(unused.digest, "retire").code == "grace_period"
    platform.restarted(MOORING_PROMOTION_GRACE_DAYS="0")
    assert platform.move(pushed.digest, "retire").code == "version_ahead_of_artifact"
    assert platform.move_version("greeter", "1.0.0", "retire").data["status"] == "retired"
    assert platform.move(pushed.digest, "retire").data["promotion"] == "retired"
    assert platform.move(unused.digest, "retire").data["promotion"] == "retired"
    the_history_tells_who_moved_it_from_where_to_where_and_why(platform, pushed.digest)


def the_history_tells_who_moved_it_from_where_to_where_and_why(platform: RegistryPlatform, digest: str) -> None:
    way = ["draft", "staged", "canary", "active", "deprecated", "retired"]
    steps = [(before, after, platform.user_id, WHY) for before, after in pairwise(way)]
    of_artifact = [each for each in platform.did("artifacts", "history", digest) if each["machine"] == "promotion"]
    for history in (of_artifact, platform.did("apps", "versions", "history", "greeter", "1.0.0")):
        assert (history[0]["before"] or None, history[0]["after"]) == (None, "draft")
        assert [(each["before"], each["after"], each["actor_id"], each["reason"]) for each in history[1:]] == steps
    trail = platform.did("audit", "--action", "app_version.promote", "--limit", "0")
    assert ({"promotion": "active"}, WHY) in [(each["before"], each["reason"]) for each in trail]


def test_rollback_leads_back_and_withdraw_leads_out(platform: RegistryPlatform) -> None:
    pushed = platform.pushed()
    platform.app("returning")
    platform.version("returning", "1.0.0", pushed.digest)
    for move in ("stage", "canary"):
        assert platform.move(pushed.id, move).exit_code == 0
        assert platform.move_version("returning", "1.0.0", move, "--canary-percentage", "10").exit_code == 0
    back = platform.move_version("returning", "1.0.0", "rollback").data
    assert (back["status"], back["canary_percentage"]) == ("staged", None)
    assert platform.move(pushed.id, "rollback").data["promotion"] == "staged"
    assert platform.move_version("returning", "1.0.0", "withdraw").data["status"] == "retired"
    assert platform.move(pushed.id, "withdraw").data["promotion"] == "retired"
    platform.version("returning", "1.0.1", pushed.digest)
    assert platform.move_version("returning", "1.0.1", "stage").code == "version_ahead_of_artifact"
    assert platform.move_version("returning", "1.0.1", "withdraw").data["status"] == "retired"


def test_a_successor_takes_the_place_of_what_it_supersedes(platform: RegistryPlatform) -> None:
    active(platform, "versioned")
    second = platform.pushed()
    platform.version("versioned", "2.0.0", second.digest)
    deprecate = ("versioned", "1.0.0", "deprecate")
    assert platform.move_version(*deprecate).code == "validation_failed"
    assert platform.move_version(*deprecate, "--superseded-by", "2.0.0", *ENDED).code == "validation_failed"
    assert platform.move_version(*deprecate, "--superseded-by", "2.0.0").code == "promotion_refused"
    for move in ("stage", "canary", "activate"):
        assert platform.move(second.id, move).exit_code == 0
        assert platform.move_version("versioned", "2.0.0", move, "--canary-percentage", "50").exit_code == 0
    after = platform.move_version(*deprecate, "--superseded-by", "2.0.0").data
    successor = platform.did("apps", "versions", "get", "versioned", "2.0.0")
    assert (after["status"], after["superseded_by"]) == ("deprecated", successor["id"])


async def _hold(platform: RegistryPlatform, digest: str, version_id: str | None, *, take: bool) -> None:
    """What an instance does when it begins and ends to use a digest: there are no instances to launch yet."""
    database = Database(PoolSettings(ClusterLayout(platform.mooring.directory / "data").dsn, 1))
    await database.open()
    acting, now = Acting(platform.tenant_id), context()
    holder = f"{Prefix.INSTANCE}_{'0' * 26}"
    try:
        if take:
            hold = Hold(digest, "instance", holder, version_id)
            await apply(
                database,
                acting,
                now,
                take_holds(now, [hold], tenant_id=platform.tenant_id, project_id=platform.project_id),
            )
        else:
            held = await artifacts.holds_of(database, acting, "instance", holder)
            await apply(database, acting, now, drop_holds(now, held))
    finally:
        await database.close()


def test_what_is_held_is_not_retired(platform: RegistryPlatform) -> None:
    _, version_id, digest = active(platform, "held")
    asyncio.run(_hold(platform, digest, version_id, take=True))
    assert platform.move_version("held", "1.0.0", "deprecate", *ENDED).exit_code == 0
    assert platform.move(digest, "deprecate", *ENDED).exit_code == 0
    assert platform.move_version("held", "1.0.0", "retire").code == "hold_present"
    impact = platform.did("artifacts", "impact", digest)
    assert [each["version"] for each in impact["versions"]] == ["1.0.0"]
    asyncio.run(_hold(platform, digest, version_id, take=False))
    assert platform.move_version("held", "1.0.0", "retire").exit_code == 0
    asyncio.run(_hold(platform, digest, None, take=True))
    assert platform.move(digest, "retire").code == "hold_present"
    asyncio.run(_hold(platform, digest, None, take=False))
    assert platform.move(digest, "retire").data["promotion"] == "retired"


def test_the_project_s_catalog_names_everything_that_hinders_a_launch(platform: RegistryPlatform) -> None:
    _, _, digest = active(platform, "hindered")
    assert codes(platform, "hindered") == ["not_entitled"]
    made = platform.did("entitlements", "create", "--project", "vision", "--app", "hindered", "--reason", WHY, *AGREED)
    assert (codes(platform, "hindered"), entry(platform, "hindered")["launchable"]) == ([], True)
    terms = ("entitlements", "update", "hindered", "--project", "vision", "--enabled", "--reason", WHY)
    platform.did(*terms, "--versions", ">=2.0.0")
    assert codes(platform, "hindered") == ["not_entitled"]
    platform.did(*terms, "--versions", ">=0.0.0")
    platform.did("policy", "update", "--project", "vision", "--rules-apps-deny", "hind*", "--reason", WHY)
    assert codes(platform, "hindered") == ["policy_denied"]
    explained = platform.did("policy", "explain", "--project", "vision", "--app", "hindered")
    assert (explained["allowed"], explained["decided_by"]) == (False, "project")
    assert "hind*" in explained["reason"]
    platform.did("policy", "update", "--project", "vision", "--rules-sources-deny", "oci://*", "--reason", WHY)
    assert codes(platform, "hindered") == ["source_denied"]
    source = platform.did("artifacts", "get", digest)["location"]
    assert platform.did("policy", "explain", "--project", "vision", "--source", source)["allowed"] is False
    platform.did("policy", "update", "--project", "vision", "--reason", WHY)
    platform.did("entitlements", "disable", "hindered", "--project", "vision", "--reason", WHY)
    platform.did("artifacts", "revoke", digest, "--reason", WHY, "--yes")
    assert sorted(codes(platform, "hindered")) == ["artifact_revoked", "not_entitled"]
    assert platform.did("entitlements", "get", "hindered", "--project", "vision")["id"] == made["id"]


def test_admins_of_the_platform_switch_an_entitlement_and_the_tenant_reads_who_did(platform: RegistryPlatform) -> None:
    app_id, _, _ = active(platform, "switched")
    where = ("--project", platform.project_id)
    made = platform.did("entitlements", "create", *where, "--app", app_id, "--reason", WHY, *AGREED, context="platform")
    assert entry(platform, "switched")["launchable"] is True
    switch = (made["id"], *where, "--reason", "the contract is over")
    assert platform.did("entitlements", "disable", *switch, context="platform")["enabled"] is False
    assert codes(platform, "switched") == ["not_entitled"]
    admin = platform.did("whoami", context="platform")["id"]
    trail = platform.did("audit", "--action", "entitlement.update", "--limit", "2")
    assert [(each["actor_id"], each["reason"]) for each in trail] == [(admin, "the contract is over"), (admin, WHY)]
    assert platform.did("entitlements", "enable", "switched", "--project", "vision", "--reason", WHY)["enabled"] is True
    assert platform.refused("catalog", "list", *where, context="platform") == "not_found"


def test_a_service_account_switches_nothing(platform: RegistryPlatform) -> None:
    made = platform.run(
        "service-accounts",
        "create",
        "--project",
        "vision",
        "--name",
        "robot",
        "--action",
        "entitlement.read",
        "--generate-key",
        str(platform.home / "robot.pem"),
    )
    assert made.exit_code == 0, made.err
    said = [line.strip().removeprefix("export ") for line in made.err.splitlines() if "export" in line]
    robot = dict(line.split("=", 1) for line in said)
    beyond = ("service-accounts", "create", "--project", "vision", "--name", "beyond", "--action", "entitlement.update")
    assert platform.refused(*beyond) == "grant_exceeds_ceiling"
    (first, *_) = platform.did("entitlements", "list", "--project", "vision")
    platform.environment = robot | {"MOORING_URL": platform.mooring.url}
    try:
        assert platform.did("entitlements", "get", first["id"], "--project", platform.project_id)["id"] == first["id"]
        switch = ("entitlements", "disable", first["id"], "--project", platform.project_id, "--reason", WHY)
        assert platform.refused(*switch) == "permission_denied"
    finally:
        platform.environment = {}


def test_a_project_reads_its_tenant_s_artifacts_and_is_referred_to_where_they_change(
    platform: RegistryPlatform,
) -> None:
    pushed = platform.pushed()
    assert platform.did("artifacts", "get", pushed.digest, "--project", "vision")["id"] == pushed.id
    asked = ("artifacts", "promote", pushed.digest, "--project", "vision", "--move", "stage", "--reason", WHY)
    refused = platform.run(*asked).error
    assert (refused["code"], refused["details"]["owner"]) == ("not_found", "tenant")
