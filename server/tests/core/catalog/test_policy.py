"""Policy: every layer allows it, or the widest that does not is named; no overlay ever widens."""

from fnmatch import fnmatchcase
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.catalog.policy import (
    LISTS,
    Layer,
    LayerRules,
    NameRules,
    PolicyChain,
    PolicyRequest,
    PolicyRules,
    PolicyVerdict,
    SignatureRules,
    Subject,
    refuse_widening,
    widenings,
)
from mooring.core.kernel.errors import Code, Refusal
from tests.support.rows import every_row

G, T, P, E = Layer

# Few names, so that random rules meet random requests.
SOURCES = ["oci://a.example/x", "oci://a.example/x/y", "oci://a.example.evil/x", "https://b.example/f", "s3://bkt/k"]
SOURCE_PATTERNS = [*SOURCES, "*", "oci://*", "oci://a.example/*", "oci://a.example/x/*", "https://b.example/*"]
WORDS = ["eu-1", "eu-2", "us-1", "gpu-a", "gpu-b", "hello"]
WORD_PATTERNS = [*WORDS, "*", "eu-*", "gpu-*", "e*"]


Layers = tuple[LayerRules, ...]


def drawn_names(chance: Random, patterns: list[str]) -> NameRules:
    allow = tuple(chance.sample(patterns, chance.randint(0, 3))) if chance.random() < 0.5 else None
    return NameRules(allow, tuple(chance.sample(patterns, chance.choice((0, 0, 1, 2)))))


def drawn_rules(chance: Random) -> PolicyRules:
    return PolicyRules(
        sources=drawn_names(chance, SOURCE_PATTERNS),
        regions=drawn_names(chance, WORD_PATTERNS),
        skus=drawn_names(chance, WORD_PATTERNS),
        apps=drawn_names(chance, WORD_PATTERNS),
        signatures=chance.choice((None, *SignatureRules)),
        gpus_max=chance.choice((None, 0, 2, 4)),
    )


def drawn_request(chance: Random) -> PolicyRequest:
    word = (None, *WORDS)
    return PolicyRequest(
        chance.choice((None, *SOURCES)),
        chance.choice(word),
        chance.choice(word),
        chance.choice(word),
        chance.choice((None, 0, 1, 3, 5)),
        chance.choice((None, True, False)),
        chance.random() < 0.5,
    )


def drawn_layers(chance: Random) -> Layers:
    return tuple(LayerRules(layer, drawn_rules(chance)) for layer in tuple(Layer)[: chance.randint(1, 4)])


seeds = st.integers(0, 2**64).map(Random)


def allowed_by(layer: PolicyRules, request: PolicyRequest) -> bool:
    """One layer's answer, said a second time and slowly."""
    for name, listed in (
        (request.source, layer.sources),
        (request.region, layer.regions),
        (request.sku, layer.skus),
        (request.app, layer.apps),
    ):
        if name is None:
            continue
        if any(fnmatchcase(name, pattern) for pattern in listed.deny):
            return False
        if listed.allow is not None and not any(fnmatchcase(name, pattern) for pattern in listed.allow):
            return False
    if request.gpus is not None and layer.gpus_max is not None and request.gpus > layer.gpus_max:
        return False
    if request.signed is False and layer.signatures is not None:
        needed = layer.signatures is SignatureRules.EVERYTHING or (
            layer.signatures is SignatureRules.IMAGES and request.image
        )
        return not needed
    return True


# Properties

one_name = st.sampled_from(WORD_PATTERNS)
few_names = st.lists(one_name, max_size=2, unique=True).map(tuple)
app_rules = st.builds(lambda allow, deny: PolicyRules(apps=NameRules(allow, deny)), st.none() | few_names, few_names)


@settings(max_examples=60)
@given(st.lists(app_rules, min_size=1, max_size=3), st.sampled_from(WORDS))
def test_no_overlay_ever_allows_an_app_that_a_layer_above_denies(rules: list[PolicyRules], app: str) -> None:
    chain = tuple(map(LayerRules, Layer, rules))
    answers = [PolicyChain(chain[:length]).decide(PolicyRequest(app=app)).allowed for length in range(len(chain) + 1)]

    assert answers == sorted(answers, reverse=True)


@settings(max_examples=40)
@given(seeds)
def test_no_overlay_ever_allows_what_the_layers_above_deny(chance: Random) -> None:
    for _ in range(10):
        chain, request = drawn_layers(chance), drawn_request(chance)
        answers = [PolicyChain(chain[:length]).decide(request).allowed for length in range(len(chain) + 1)]

        assert answers[0]
        assert answers == sorted(answers, reverse=True), (chain, request)


@settings(max_examples=40)
@given(seeds)
def test_it_is_allowed_when_every_layer_allows_it_and_else_the_widest_that_does_not_decided(chance: Random) -> None:
    for _ in range(10):
        chain, request = drawn_layers(chance), drawn_request(chance)
        verdict = PolicyChain(chain).decide(request)
        denying = [layer for layer, each in chain if not allowed_by(each, request)]

        assert verdict.allowed is (not denying), (chain, request)
        assert verdict.layer is (denying[0] if denying else None)


@settings(max_examples=30)
@given(seeds)
def test_an_explanation_has_each_layers_answer_to_each_question(chance: Random) -> None:
    chain, request = drawn_layers(chance), drawn_request(chance)
    answers = PolicyChain(chain).explain(request)
    asked = sum(value is not None for value in request[:6])

    assert [answer.layer for answer in answers] == [layer for layer, _ in chain for _ in range(asked)]
    assert all(answer.allowed for answer in answers) is PolicyChain(chain).decide(request).allowed
    assert all(answer.reason for answer in answers)


@settings(max_examples=40)
@given(seeds)
def test_what_an_overlay_promises_without_widening_is_allowed_above(chance: Random) -> None:
    for _ in range(10):
        above, overlay = drawn_rules(chance), drawn_rules(chance)
        wide = {(each.field, each.value) for each in widenings([LayerRules(G, above)], overlay)}
        for field, known in (("sources", SOURCES), ("apps", WORDS)):
            promised = [each for each in getattr(overlay, field).allow or () if (field, each) not in wide]
            upper: NameRules = getattr(above, field)
            for name in known:
                if upper.allow is not None and any(fnmatchcase(name, each) for each in promised):
                    assert any(fnmatchcase(name, each) for each in upper.allow), (above, overlay, name)


@settings(max_examples=20)
@given(seeds)
def test_a_chain_that_is_narrowed_is_the_chain_with_one_more_layer(chance: Random) -> None:
    for _ in range(10):
        chain, request = tuple(LayerRules(layer, drawn_rules(chance)) for layer in Layer), drawn_request(chance)
        narrowed = PolicyChain(chain[:2]).narrowed(*chain[2]).narrowed(*chain[3])

        assert narrowed.layers == chain
        assert narrowed.decide(request) == PolicyChain(chain).decide(request)


# Decisions


def denied(chain: PolicyChain, request: PolicyRequest) -> tuple[Layer | None, Subject | None]:
    verdict = chain.decide(request)
    assert not verdict.allowed
    return verdict.layer, verdict.subject


def test_an_empty_chain_allows_everything() -> None:
    everything = PolicyRequest("oci://x.example/y", "eu-1", "gpu", "app", 10_000, False, True)

    assert PolicyChain(()).decide(everything) == PolicyVerdict(True)
    assert PolicyChain([LayerRules(layer, PolicyRules()) for layer in Layer]).decide(everything).allowed
    assert PolicyChain(()).gpus_max is None
    assert not PolicyChain(()).requires_signature(image=True)


def test_a_global_denial_is_final() -> None:
    chain = PolicyChain(
        [
            LayerRules(G, PolicyRules(apps=NameRules(deny=("bad",)))),
            LayerRules(P, PolicyRules(apps=NameRules(allow=("bad", "good")))),
        ]
    )

    assert denied(chain, PolicyRequest(app="bad")) == (G, Subject.APP)
    assert chain.decide(PolicyRequest(app="bad")).reason == "the deny list has 'bad'"
    assert chain.decide(PolicyRequest(app="good")).allowed
    assert denied(chain, PolicyRequest(app="other")) == (P, Subject.APP)


def test_an_empty_list_allows_nothing_and_no_list_allows_all() -> None:
    assert denied(
        PolicyChain([LayerRules(T, PolicyRules(regions=NameRules(allow=())))]), PolicyRequest(region="eu-1")
    ) == (
        T,
        Subject.REGION,
    )
    assert (
        PolicyChain([LayerRules(T, PolicyRules(regions=NameRules(allow=None)))])
        .decide(PolicyRequest(region="eu-1"))
        .allowed
    )


def test_a_source_is_matched_by_whole_names_and_not_by_how_it_begins() -> None:
    chain = PolicyChain([LayerRules(G, PolicyRules(sources=NameRules(allow=("oci://registry.example/*",))))])

    assert chain.decide(PolicyRequest(source="oci://registry.example/team/app")).allowed
    for source in ("oci://registry.example.evil/app", "oci://registry.example", "https://registry.example/app"):
        assert denied(chain, PolicyRequest(source=source)) == (G, Subject.SOURCE)


def test_the_smallest_maximum_counts_and_the_widest_exceeded_layer_decided() -> None:
    chain = PolicyChain(
        [
            LayerRules(G, PolicyRules(gpus_max=8)),
            LayerRules(T, PolicyRules(gpus_max=16)),
            LayerRules(P, PolicyRules(gpus_max=4)),
        ]
    )

    assert chain.gpus_max == 4
    assert chain.decide(PolicyRequest(gpus=4)).allowed
    assert denied(chain, PolicyRequest(gpus=5)) == (P, Subject.GPUS)
    assert denied(chain, PolicyRequest(gpus=9)) == (G, Subject.GPUS)


def test_the_strictest_demand_for_signatures_counts() -> None:
    images, everything = (
        PolicyRules(signatures=SignatureRules.IMAGES),
        PolicyRules(signatures=SignatureRules.EVERYTHING),
    )

    assert PolicyChain([LayerRules(G, images)]).requires_signature(image=True)
    assert not PolicyChain([LayerRules(G, images)]).requires_signature(image=False)
    assert PolicyChain([LayerRules(G, images), LayerRules(P, everything)]).requires_signature(image=False)
    assert PolicyChain(
        [LayerRules(G, everything), LayerRules(P, PolicyRules(signatures=SignatureRules.NONE))]
    ).requires_signature(image=False)
    assert denied(
        PolicyChain([LayerRules(G, images), LayerRules(T, everything)]), PolicyRequest(signed=False, image=False)
    ) == (
        T,
        Subject.SIGNATURE,
    )
    assert PolicyChain([LayerRules(G, everything)]).decide(PolicyRequest(signed=True)).allowed


def test_a_denial_becomes_a_refusal_that_names_the_layer() -> None:
    chain = PolicyChain([LayerRules(T, PolicyRules(skus=NameRules(allow=("gpu-a",)), sources=NameRules(deny=("*",))))])
    sku, source = (
        chain.decide(PolicyRequest(sku="gpu-b")).refusal(),
        chain.decide(PolicyRequest(source="s3://bkt/k")).refusal(),
    )

    assert sku is not None
    assert source is not None
    assert (sku.code, source.code) == (Code.POLICY_DENIED, Code.SOURCE_DENIED)
    assert sku.details == {
        "layer": "tenant",
        "subject": "sku",
        "value": "gpu-b",
        "reason": "it is not on the allow list",
    }
    assert chain.decide(PolicyRequest(sku="gpu-a")).refusal() is None


def test_an_explanation_says_what_each_layer_thinks() -> None:
    chain = PolicyChain(
        [
            LayerRules(G, PolicyRules(regions=NameRules(allow=("eu-*",)), gpus_max=8)),
            LayerRules(T, PolicyRules()),
            LayerRules(P, PolicyRules(regions=NameRules(deny=("eu-2",)), signatures=SignatureRules.IMAGES)),
        ]
    )
    explained = [
        (answer.layer, answer.subject, answer.allowed, answer.reason)
        for answer in chain.explain(PolicyRequest(region="eu-2", gpus=4, signed=True))
    ]

    assert explained == [
        (G, Subject.REGION, True, "the allow list has 'eu-*'"),
        (G, Subject.GPUS, True, "at most 8 are allowed"),
        (G, Subject.SIGNATURE, True, "the layer has no rule for it"),
        (T, Subject.REGION, True, "the layer has no rule for it"),
        (T, Subject.GPUS, True, "the layer has no rule for it"),
        (T, Subject.SIGNATURE, True, "the layer has no rule for it"),
        (P, Subject.REGION, False, "the deny list has 'eu-2'"),
        (P, Subject.GPUS, True, "the layer has no rule for it"),
        (P, Subject.SIGNATURE, True, "signatures are required for images"),
    ]


def test_layers_stand_once_and_in_their_order() -> None:
    for wrong in (
        [LayerRules(P, PolicyRules()), LayerRules(G, PolicyRules())],
        [LayerRules(G, PolicyRules()), LayerRules(G, PolicyRules())],
    ):
        with pytest.raises(ValueError, match="widest first"):
            PolicyChain(wrong)
    with pytest.raises(ValueError, match="widest first"):
        PolicyChain([LayerRules(P, PolicyRules())]).narrowed(T, PolicyRules())


# Widening


@every_row(
    ("above", "overlay", "field"),
    [
        (PolicyRules(apps=NameRules(deny=("bad",))), PolicyRules(apps=NameRules(allow=("bad",))), "apps"),
        (PolicyRules(apps=NameRules(allow=("a", "b"))), PolicyRules(apps=NameRules(allow=("b", "c"))), "apps"),
        (PolicyRules(regions=NameRules(allow=("eu-1",))), PolicyRules(regions=NameRules(allow=("eu-*",))), "regions"),
        (PolicyRules(skus=NameRules(allow=())), PolicyRules(skus=NameRules(allow=("*",))), "skus"),
        (
            PolicyRules(sources=NameRules(allow=("oci://a.example/x/*",))),
            PolicyRules(sources=NameRules(allow=("oci://a.example/*",))),
            "sources",
        ),
        (PolicyRules(gpus_max=4), PolicyRules(gpus_max=5), "gpus_max"),
        (
            PolicyRules(signatures=SignatureRules.EVERYTHING),
            PolicyRules(signatures=SignatureRules.IMAGES),
            "signatures",
        ),
    ],
)
def test_an_overlay_that_says_more_is_refused(above: PolicyRules, overlay: PolicyRules, field: str) -> None:
    (found,) = widenings([LayerRules(G, above)], overlay)
    with pytest.raises(Refusal) as refused:
        refuse_widening([LayerRules(G, above)], overlay)

    assert (found.field, found.layer) == (field, G)
    assert refused.value.code is Code.POLICY_WIDENS
    assert isinstance(refused.value.details["widenings"], list)
    assert refused.value.details["widenings"][0]["field"] == field


def test_an_overlay_that_narrows_or_is_empty_is_accepted() -> None:
    above = PolicyRules(
        apps=NameRules(allow=("a*",), deny=("ab",)),
        gpus_max=4,
        signatures=SignatureRules.IMAGES,
        regions=NameRules(deny=("us-1",)),
    )
    for overlay in (
        PolicyRules(),
        PolicyRules(apps=NameRules(allow=("aa", "ac*"), deny=("zz",)), gpus_max=4),
        PolicyRules(apps=NameRules(allow=()), signatures=SignatureRules.EVERYTHING, gpus_max=0),
        PolicyRules(regions=NameRules(allow=("eu-1",))),
    ):
        refuse_widening([LayerRules(G, above)], overlay)


def test_the_subjects_that_are_decided_by_names_have_a_field_each() -> None:
    assert all(isinstance(getattr(PolicyRules(), field), NameRules) for field in LISTS.values())
    assert [subject.value for subject in LISTS] == list(PolicyRequest._fields[: len(LISTS)])
