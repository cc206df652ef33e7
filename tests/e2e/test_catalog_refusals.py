"""Every forbidden move of the promotion and of the trust of artifacts and versions, by the command, with its code.

What is forbidden is read from the core's own tables, so that a state, a move or a rule that is added there is tried
here without another word.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from mooring.core.catalog.artifact_promotion import NEEDS
from mooring.core.catalog.promotion_lifecycle import PROMOTION, PromotionState, PromotionTrigger
from mooring.core.catalog.trust_lifecycle import TRUST, TrustState, TrustTrigger
from mooring.core.kernel.lifecycle import AnyLifecycle, Transition
from mooring.gateways.signing.cosign_keys import SigningKey, new_signing_key
from tests.e2e.registry_platform import WHY, CommandResult, PushedImage, RegistryPlatform, running_registry_platform

pytestmark = [pytest.mark.real_part("registry"), pytest.mark.real_part("postgresql")]

S, T = PromotionState, PromotionTrigger
SHARE = ("--canary-percentage", "10")
ENDED = ("--no-successor-because", "nobody needs it any more")
FURTHER: dict[PromotionTrigger, tuple[str, ...]] = {T.DEPRECATE: ENDED}
FURTHER_OF_VERSION = {**FURTHER, T.CANARY: SHARE}


def forbidden(machine: AnyLifecycle) -> list[tuple[Any, Any]]:
    """Every state with every trigger that it does not accept."""
    return [
        (state, trigger)
        for state in machine.states
        for trigger in machine.triggers
        if trigger not in machine.allowed(state)
    ]


def way_to(state: PromotionState) -> list[Transition[PromotionState, PromotionTrigger]]:
    """The shortest way from the beginning to a state, by the table."""
    ways: dict[PromotionState, list[Transition[PromotionState, PromotionTrigger]]] = {PROMOTION.initial: []}
    while state not in ways:
        for edge in PROMOTION.edges:
            if edge.source in ways and edge.target not in ways:
                ways[edge.target] = [*ways[edge.source], edge]
    return ways[state]


def breaking() -> list[tuple[Transition[PromotionState, PromotionTrigger], PromotionState]]:
    """Every move of an artifact that would leave a version in some state ahead of it."""
    return [
        (edge, version)
        for edge, version in product(PROMOTION.edges, PromotionState)
        if edge.source in NEEDS[version] and edge.target not in NEEDS[version]
    ]


def too_early() -> list[tuple[Transition[PromotionState, PromotionTrigger], PromotionState]]:
    """Every move of a version that its artifact, in a state that the version bears now, does not allow."""
    return [
        (edge, artifact)
        for edge, artifact in product(PROMOTION.edges, PromotionState)
        if artifact in NEEDS[edge.source] and artifact not in NEEDS[edge.target]
    ]


class CatalogStock:
    """Artifacts and versions in the states that are asked for, each made once."""

    def __init__(self, platform: RegistryPlatform) -> None:
        self._platform = platform
        self._artifacts: dict[tuple[PromotionState, str], PushedImage] = {}
        self._versions: dict[tuple[PromotionState, PromotionState], str] = {}
        self._app = platform.app("stocked")

    def artifact(self, state: PromotionState, of: str = "itself") -> PushedImage:
        """An artifact in a state; `of` says for whose sake, so that nobody else's version is on it."""
        if (state, of) not in self._artifacts:
            pushed = self._platform.pushed()
            self._moved(pushed, way_to(state))
            self._artifacts[state, of] = pushed
        return self._artifacts[state, of]

    def version(self, state: PromotionState, artifact: PromotionState) -> tuple[str, PushedImage]:
        """The number of a version in a state on an artifact in a state, and the artifact."""
        of = f"a version that is {state}"
        if (state, artifact) not in self._versions:
            pushed = self._platform.pushed()
            number = f"1.0.{len(self._versions)}"
            self._platform.version("stocked", number, pushed.digest)
            self._walk(number, way_to(state), pushed, way_to(artifact))
            self._versions[state, artifact], self._artifacts[artifact, of] = number, pushed
        return self._versions[state, artifact], self._artifacts[artifact, of]

    def _walk(self, number: str, steps: list[Any], pushed: PushedImage, ways: list[Any]) -> None:
        """Bring both to where they shall be; the artifact goes first as far as the version's next step needs it."""
        place, ways = S.DRAFT, list(ways)
        for step in steps:
            while place not in NEEDS[step.target] or (step.target is S.DEPRECATED and place is not S.ACTIVE):
                place = self._moved(pushed, [ways.pop(0)])
            self._platform.moved_version("stocked", number, step.trigger, *FURTHER_OF_VERSION.get(step.trigger, ()))
        self._moved(pushed, ways)

    def _moved(self, pushed: PushedImage, edges: list[Any]) -> Any:
        place = S.DRAFT
        for edge in edges:
            self._platform.moved(pushed.id, edge.trigger, *FURTHER.get(edge.trigger, ()))
            place = edge.target
        return place


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryPlatform]:
    with running_registry_platform(tmp_path_factory.mktemp("refusals"), MOORING_PROMOTION_GRACE_DAYS="0") as made:
        made.is_quick = True
        made.settle("harbour")
        yield made


@pytest.fixture(scope="module")
def stock(platform: RegistryPlatform) -> CatalogStock:
    return CatalogStock(platform)


@pytest.mark.parametrize("state", list(PromotionState))
def test_an_artifact_makes_no_move_that_its_table_does_not_have(
    platform: RegistryPlatform, stock: CatalogStock, state: PromotionState
) -> None:
    artifact = stock.artifact(state)
    for _, trigger in [each for each in forbidden(PROMOTION) if each[0] is state]:
        refused = platform.move(artifact.id, trigger, *FURTHER.get(trigger, ())).error
        assert (refused["code"], refused["details"]["state"]) == ("illegal_transition", state), trigger
        assert refused["details"]["allowed"] == list(PROMOTION.allowed(state))
    assert platform.did("artifacts", "get", artifact.id)["promotion"] == state


@pytest.mark.parametrize("state", list(PromotionState))
def test_a_version_makes_no_move_that_its_table_does_not_have(
    platform: RegistryPlatform, stock: CatalogStock, state: PromotionState
) -> None:
    number, _ = stock.version(state, S.ACTIVE)
    for _, trigger in [each for each in forbidden(PROMOTION) if each[0] is state]:
        ran = platform.move_version("stocked", number, trigger, *FURTHER_OF_VERSION.get(trigger, ()))
        if (state, trigger) == (S.CANARY, T.CANARY):  # no move: the same command states another percentage
            assert ran.data["status"] == "canary"
            assert platform.move_version("stocked", number, trigger).code == "validation_failed"
            continue
        assert (ran.code, ran.error["details"]["state"]) == ("illegal_transition", state), trigger
    assert platform.did("apps", "versions", "get", "stocked", number)["status"] == state


@pytest.mark.parametrize(("edge", "artifact"), too_early(), ids=lambda each: getattr(each, "trigger", each))
def test_a_version_does_not_go_ahead_of_its_artifact(
    platform: RegistryPlatform,
    stock: CatalogStock,
    edge: Transition[PromotionState, PromotionTrigger],
    artifact: PromotionState,
) -> None:
    number, pushed = stock.version(edge.source, artifact)
    refused = platform.move_version("stocked", number, edge.trigger, *FURTHER_OF_VERSION.get(edge.trigger, ())).error
    assert (refused["code"], refused["details"]["target"]) == ("version_ahead_of_artifact", edge.target)
    assert [each["digest"] for each in refused["details"]["artifacts"]] == [pushed.digest]


@pytest.mark.parametrize(("edge", "version"), breaking(), ids=lambda each: getattr(each, "trigger", each))
def test_an_artifact_does_not_leave_a_version_behind_it_ahead(
    platform: RegistryPlatform,
    stock: CatalogStock,
    edge: Transition[PromotionState, PromotionTrigger],
    version: PromotionState,
) -> None:
    number, pushed = stock.version(version, edge.source)
    refused = platform.move(pushed.id, edge.trigger, *FURTHER.get(edge.trigger, ())).error
    assert refused["code"] == "version_ahead_of_artifact"
    assert [each["version"] for each in refused["details"]["versions"]] == [number]


@pytest.mark.parametrize(
    ("state", "words", "code"),
    [
        (S.ACTIVE, ("deprecate",), "validation_failed"),
        (S.ACTIVE, ("deprecate", "--superseded-by", "art_" + "0" * 26, *ENDED), "validation_failed"),
        (S.ACTIVE, ("deprecate", "--superseded-by", "art_" + "0" * 26), "promotion_refused"),
        (S.ACTIVE, ("deprecate", "--superseded-by", "itself"), "promotion_refused"),
    ],
    ids=["neither successor nor reason", "both", "a successor that is not there", "itself"],
)
def test_an_artifact_is_deprecated_for_a_successor_or_for_a_reason(
    platform: RegistryPlatform, stock: CatalogStock, state: PromotionState, words: tuple[str, ...], code: str
) -> None:
    artifact = stock.artifact(state)
    move, *further = [artifact.digest if word == "itself" else word for word in words]
    assert platform.move(artifact.id, move, *further).code == code


@pytest.mark.parametrize("percentage", ["0", "0.001", "100.5", "-1"])
def test_a_canary_has_a_percentage_that_means_some_of_the_projects(
    platform: RegistryPlatform, stock: CatalogStock, percentage: str
) -> None:
    number, _ = stock.version(S.STAGED, S.ACTIVE)
    assert platform.move_version("stocked", number, "canary").code == "validation_failed"
    ran = platform.move_version("stocked", number, "canary", "--canary-percentage", percentage)
    assert ran.code == "validation_failed"


def test_what_is_staged_does_not_change_and_what_is_wrong_is_not_staged(
    platform: RegistryPlatform, stock: CatalogStock
) -> None:
    number, pushed = stock.version(S.STAGED, S.ACTIVE)
    other = platform.home / "other.yaml"
    other.write_text((platform.home / f"stocked-{number}.yaml").read_text().replace("port: web", "port: web-2"))
    replace = ("apps", "versions", "replace-manifest", "stocked")
    assert platform.refused(*replace, number, "--manifest", f"@{other}") == "version_immutable"
    platform.version("stocked", "3.0.0", pushed.digest)
    bad = platform.home / "bad.yaml"
    bad.write_text((platform.home / "stocked-3.0.0.yaml").read_text().replace("image: main", "image: other"))
    linted = platform.run("manifest", "lint", str(bad))
    assert (linted.exit_code, "other" in linted.out) == (1, True)
    assert platform.did(*replace, "3.0.0", "--manifest", f"@{bad}")["status"] == "draft"
    assert platform.move_version("stocked", "3.0.0", "stage").code == "manifest_invalid"


# Trust. No command names its moves but `revoke`: they follow from what is found, so each is provoked.


class TrustCase:
    """An artifact in a state of trust, with a key of its own, where a signature is required."""

    def __init__(self, platform: RegistryPlatform, state: TrustState) -> None:
        self.platform, self.key, self.pushed = platform, new_signing_key(), platform.pushed()
        self.key_id = platform.trusted(self.key, f"key-of-{self.pushed.id[-12:]}")
        if state is TrustState.VERIFIED:
            self.provoke(TrustTrigger.VERIFY)
        if state is TrustState.REJECTED:
            self.provoke(TrustTrigger.REJECT)
        if state is TrustState.REVOKED:
            assert self.provoke(TrustTrigger.REVOKE).exit_code == 0
        assert self.trust == state

    @property
    def trust(self) -> str:
        return str(self.platform.did("artifacts", "get", self.pushed.id)["trust"])

    @property
    def doubts(self) -> list[str]:
        return [each["code"] for each in self.platform.did("artifacts", "get", self.pushed.id)["doubts"]]

    @property
    def history(self) -> list[tuple[str, str, str]]:
        history = self.platform.did("artifacts", "history", self.pushed.id)
        return [(each["before"], each["trigger"], each["after"]) for each in history if each["machine"] == "trust"]

    def provoke(self, trigger: TrustTrigger) -> CommandResult:
        """Do what brings a trigger about where the table has it."""
        steps: dict[TrustTrigger, Callable[[], object]] = {
            TrustTrigger.VERIFY: lambda: self.platform.signed(self.pushed, self.key),
            TrustTrigger.REJECT: lambda: self.platform.signed(
                self.pushed, self.key, f"{self.platform.registry.authority}/x/y"
            ),
            TrustTrigger.LOSE_EVIDENCE: self.lose_the_key,
        }
        if trigger is TrustTrigger.REVOKE:
            return self.platform.ran("artifacts", "revoke", self.pushed.id, "--reason", WHY, "--yes")
        steps[trigger]()
        return self.platform.ran("artifacts", "verify", self.pushed.id)

    def lose_the_key(self) -> None:
        self.platform.did("signer-keys", "remove", self.key_id, "--yes")

    def get_the_key_back(self) -> None:
        self.key_id = self.platform.trusted(self.key, f"key-of-{self.pushed.id[-12:]}")


USE: dict[TrustState, str | None] = {
    TrustState.UNVERIFIED: "signature_missing",
    TrustState.VERIFIED: None,
    TrustState.REJECTED: "signature_replayed",
    TrustState.REVOKED: "artifact_revoked",
}
"""Why what is in this state here is not staged."""


@pytest.fixture(scope="module")
def strict(platform: RegistryPlatform) -> Iterator[RegistryPlatform]:
    """The same, in a tenant where every image has to be signed."""
    before = (platform.context, platform.tenant_id, platform.project_id, platform.user_id)
    platform.settle("strict")
    platform.did("policy", "update", "--rules-signatures", "images", "--reason", WHY)
    yield platform
    platform.context, platform.tenant_id, platform.project_id, platform.user_id = before


@pytest.mark.parametrize("state", list(TrustState))
def test_trust_makes_no_move_that_its_table_does_not_have(strict: RegistryPlatform, state: TrustState) -> None:
    made = TrustCase(strict, state)
    before = made.history
    if USE[state] is not None:
        assert strict.move(made.pushed.id, "stage").code == USE[state]
    for _, trigger in [each for each in forbidden(TRUST) if each[0] is state]:
        ran = made.provoke(trigger)
        if trigger is TrustTrigger.REVOKE:
            assert ran.code == "illegal_transition"
        assert (made.history, strict.did("artifacts", "history", made.pushed.id)[-1]["after"]) == (before, state)
    if state is TrustState.REVOKED:
        assert (made.trust, made.doubts) == ("revoked", ["artifact_revoked"])


def test_trust_makes_every_move_that_its_table_has(strict: RegistryPlatform) -> None:
    made = TrustCase(strict, TrustState.UNVERIFIED)
    made.provoke(TrustTrigger.VERIFY)
    made.provoke(TrustTrigger.LOSE_EVIDENCE)
    assert (made.trust, made.doubts) == ("unverified", ["signature_key_unknown"])
    made.get_the_key_back()
    strict.did("artifacts", "verify", made.pushed.id)
    strict.did("policy", "update", "--rules-signatures", "images", "--rules-sources-deny", "oci://*", "--reason", WHY)
    strict.did("artifacts", "verify", made.pushed.id)
    assert (made.trust, made.doubts) == ("rejected", ["source_denied"])
    strict.did("policy", "update", "--rules-signatures", "images", "--reason", WHY)
    strict.did("artifacts", "verify", made.pushed.id)
    seen = set(made.history)
    for state in (TrustState.UNVERIFIED, TrustState.VERIFIED, TrustState.REJECTED):
        other = TrustCase(strict, state)
        assert other.provoke(TrustTrigger.REVOKE).exit_code == 0
        seen |= set(other.history)
    assert {each for each in seen if each[1] != "birth"} == {
        (edge.source, edge.trigger, edge.target) for edge in TRUST.edges
    }


def test_what_is_no_longer_verified_is_not_activated(strict: RegistryPlatform) -> None:
    made = TrustCase(strict, TrustState.VERIFIED)
    strict.app("doubted")
    strict.version("doubted", "1.0.0", made.pushed.digest)
    for move in ("stage", "canary"):
        strict.moved(made.pushed.id, move)
        strict.moved_version("doubted", "1.0.0", move, *SHARE)
    made.lose_the_key()
    assert strict.move(made.pushed.id, "activate").code == "signature_key_unknown"
    made.get_the_key_back()
    assert strict.move(made.pushed.id, "activate").data["promotion"] == "active"
    made.lose_the_key()
    refused = strict.move_version("doubted", "1.0.0", "activate").error
    assert refused["code"] == "version_ahead_of_artifact"
    assert "verified is needed" in refused["details"]["artifacts"][0]["detail"]
    assert made.provoke(TrustTrigger.REVOKE).exit_code == 0
    assert strict.move_version("doubted", "1.0.0", "activate").code == "version_ahead_of_artifact"
    assert strict.move_version("doubted", "1.0.0", "rollback").code == "version_ahead_of_artifact"
    assert [each["version"] for each in strict.did("artifacts", "impact", made.pushed.id)["versions"]] == ["1.0.0"]


def test_the_tables_forbid_what_this_file_tries() -> None:
    assert len(forbidden(PROMOTION)) == len(S) * len(T) - len(PROMOTION.edges)
    assert len(forbidden(TRUST)) == len(TrustState) * len(TrustTrigger) - len(TRUST.edges)
    assert {(edge.trigger, state) for edge, state in breaking()} >= {(T.ROLLBACK, S.CANARY), (T.DEPRECATE, S.ACTIVE)}
    assert {(edge.trigger, state) for edge, state in too_early()} >= {(T.STAGE, S.DRAFT), (T.ACTIVATE, S.CANARY)}
    assert set(USE) == set(TrustState)
    assert isinstance(new_signing_key(), SigningKey)
