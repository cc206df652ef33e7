"""Policy: every layer allows it, or the widest that does not is named; no overlay ever widens."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.artifact_location import covers
from mooring.core.errors import Code, Refusal
from mooring.core.policy import (
    LISTS,
    Chain,
    Layer,
    Names,
    Request,
    Rules,
    Signatures,
    Subject,
    Verdict,
    refuse_widening,
    widenings,
)

G, T, P, E = Layer

# Few names, so that random rules meet random requests.
SOURCES = ["oci://a.example/x", "oci://a.example/x/y", "oci://a.example.evil/x", "https://b.example/f", "s3://bkt/k"]
SOURCE_PATTERNS = [*SOURCES, "*", "oci://*", "oci://a.example/*", "oci://a.example/x/*", "https://b.example/*"]
WORDS = ["eu-1", "eu-2", "us-1", "gpu-a", "gpu-b", "hello"]
WORD_PATTERNS = [*WORDS, "*", "eu-*", "gpu-*", "e*"]


def names(patterns: list[str]) -> st.SearchStrategy[Names]:
    some = st.lists(st.sampled_from(patterns), max_size=3, unique=True).map(tuple)
    return st.builds(Names, st.none() | some, some)


rules = st.builds(
    Rules,
    sources=names(SOURCE_PATTERNS), regions=names(WORD_PATTERNS), skus=names(WORD_PATTERNS), apps=names(WORD_PATTERNS),
    signatures=st.none() | st.sampled_from(Signatures), gpus_max=st.none() | st.integers(0, 4),
)  # fmt: skip
requests = st.builds(
    Request,
    st.none() | st.sampled_from(SOURCES), st.none() | st.sampled_from(WORDS), st.none() | st.sampled_from(WORDS),
    st.none() | st.sampled_from(WORDS), st.none() | st.integers(0, 5), st.none() | st.booleans(), st.booleans(),
)  # fmt: skip
layers = st.lists(rules, min_size=1, max_size=4).map(lambda each: tuple(zip(Layer, each, strict=False)))


def allowed_by(layer: Rules, request: Request) -> bool:
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
        needed = layer.signatures is Signatures.EVERYTHING or (layer.signatures is Signatures.IMAGES and request.image)
        return not needed
    return True


# Properties


@settings(max_examples=300)
@given(layers, requests)
def test_no_overlay_ever_allows_what_the_layers_above_deny(
    chain: tuple[tuple[Layer, Rules], ...], request: Request
) -> None:
    answers = [Chain(chain[:length]).decide(request).allowed for length in range(len(chain) + 1)]

    assert answers[0]
    assert answers == sorted(answers, reverse=True)


@settings(max_examples=300)
@given(layers, requests)
def test_it_is_allowed_when_every_layer_allows_it_and_else_the_widest_that_does_not_decided(
    chain: tuple[tuple[Layer, Rules], ...], request: Request
) -> None:
    verdict = Chain(chain).decide(request)
    denying = [layer for layer, each in chain if not allowed_by(each, request)]

    assert verdict.allowed is (not denying)
    assert verdict.layer is (denying[0] if denying else None)


@settings(max_examples=150)
@given(layers, requests)
def test_an_explanation_has_each_layers_answer_to_each_question(
    chain: tuple[tuple[Layer, Rules], ...], request: Request
) -> None:
    answers = Chain(chain).explain(request)
    asked = sum(value is not None for value in request[:6])

    assert len(answers) == asked * len(chain)
    assert all(
        answers[index].layer is layer for index, layer in enumerate(layer for layer, _ in chain for _ in range(asked))
    )
    assert all(answer.allowed for answer in answers) is Chain(chain).decide(request).allowed
    assert all(answer.reason for answer in answers)


@settings(max_examples=150)
@given(rules, rules, requests)
def test_an_overlay_that_widens_nothing_is_never_cut_by_the_layer_above(
    above: Rules, overlay: Rules, request: Request
) -> None:
    # What an overlay names in its lists is what it promises; without widenings the layer above keeps each promise.
    if widenings([(G, above)], overlay):
        return
    for name, subject in ((request.source, "sources"), (request.region, "regions"), (request.app, "apps")):
        listed: Names = getattr(overlay, subject)
        upper: Names = getattr(above, subject)
        promised = [pattern for pattern in listed.allow or () if name is not None and covers(pattern, name)]
        if promised and upper.allow is not None:
            assert any(covers(pattern, str(name)) for pattern in upper.allow)


# Decisions


def denied(chain: Chain, request: Request) -> tuple[Layer | None, Subject | None]:
    verdict = chain.decide(request)
    assert not verdict.allowed
    return verdict.layer, verdict.subject


def test_a_chain_that_says_nothing_allows_everything() -> None:
    everything = Request("oci://x.example/y", "eu-1", "gpu", "app", 10_000, False, True)

    assert Chain(()).decide(everything) == Verdict(True)
    assert Chain([(layer, Rules()) for layer in Layer]).decide(everything).allowed
    assert Chain(()).gpus_max is None
    assert not Chain(()).requires_signature(image=True)


def test_a_global_denial_is_final() -> None:
    chain = Chain([(G, Rules(apps=Names(deny=("bad",)))), (P, Rules(apps=Names(allow=("bad", "good"))))])

    assert denied(chain, Request(app="bad")) == (G, Subject.APP)
    assert chain.decide(Request(app="bad")).reason == "it is denied by 'bad'"
    assert chain.decide(Request(app="good")).allowed
    assert denied(chain, Request(app="other")) == (P, Subject.APP)


def test_an_empty_list_allows_nothing_and_no_list_allows_all() -> None:
    assert denied(Chain([(T, Rules(regions=Names(allow=())))]), Request(region="eu-1")) == (T, Subject.REGION)
    assert Chain([(T, Rules(regions=Names(allow=None)))]).decide(Request(region="eu-1")).allowed


def test_a_source_is_matched_by_whole_names_and_not_by_how_it_begins() -> None:
    chain = Chain([(G, Rules(sources=Names(allow=("oci://registry.example/*",))))])

    assert chain.decide(Request(source="oci://registry.example/team/app")).allowed
    for source in ("oci://registry.example.evil/app", "oci://registry.example", "https://registry.example/app"):
        assert denied(chain, Request(source=source)) == (G, Subject.SOURCE)


def test_the_smallest_maximum_counts_and_the_widest_exceeded_layer_decided() -> None:
    chain = Chain([(G, Rules(gpus_max=8)), (T, Rules(gpus_max=16)), (P, Rules(gpus_max=4))])

    assert chain.gpus_max == 4
    assert chain.decide(Request(gpus=4)).allowed
    assert denied(chain, Request(gpus=5)) == (P, Subject.GPUS)
    assert denied(chain, Request(gpus=9)) == (G, Subject.GPUS)


def test_the_strictest_demand_for_signatures_counts() -> None:
    images, everything = Rules(signatures=Signatures.IMAGES), Rules(signatures=Signatures.EVERYTHING)

    assert Chain([(G, images)]).requires_signature(image=True)
    assert not Chain([(G, images)]).requires_signature(image=False)
    assert Chain([(G, images), (P, everything)]).requires_signature(image=False)
    assert Chain([(G, everything), (P, Rules(signatures=Signatures.NONE))]).requires_signature(image=False)
    assert denied(Chain([(G, images), (T, everything)]), Request(signed=False, image=False)) == (T, Subject.SIGNATURE)
    assert Chain([(G, everything)]).decide(Request(signed=True)).allowed


def test_a_denial_becomes_a_refusal_that_names_the_layer() -> None:
    chain = Chain([(T, Rules(skus=Names(allow=("gpu-a",)), sources=Names(deny=("*",))))])
    sku, source = chain.decide(Request(sku="gpu-b")).refusal(), chain.decide(Request(source="s3://bkt/k")).refusal()

    assert sku is not None
    assert source is not None
    assert (sku.code, source.code) == (Code.POLICY_DENIED, Code.SOURCE_DENIED)
    assert sku.details == {
        "layer": "tenant", "subject": "sku", "value": "gpu-b", "reason": "it is not on the list of what is allowed",
    }  # fmt: skip
    assert chain.decide(Request(sku="gpu-a")).refusal() is None


def test_an_explanation_says_what_each_layer_thinks() -> None:
    chain = Chain(
        [
            (G, Rules(regions=Names(allow=("eu-*",)), gpus_max=8)),
            (T, Rules()),
            (P, Rules(regions=Names(deny=("eu-2",)), signatures=Signatures.IMAGES)),
        ]
    )
    told = [
        (answer.layer, answer.subject, answer.allowed, answer.reason)
        for answer in chain.explain(Request(region="eu-2", gpus=4, signed=True))
    ]

    assert told == [
        (G, Subject.REGION, True, "it is allowed by 'eu-*'"),
        (G, Subject.GPUS, True, "at most 8 are allowed"),
        (G, Subject.SIGNATURE, True, "nothing is said"),
        (T, Subject.REGION, True, "nothing is said"),
        (T, Subject.GPUS, True, "nothing is said"),
        (T, Subject.SIGNATURE, True, "nothing is said"),
        (P, Subject.REGION, False, "it is denied by 'eu-2'"),
        (P, Subject.GPUS, True, "nothing is said"),
        (P, Subject.SIGNATURE, True, "signatures are required for images"),
    ]


def test_layers_stand_once_and_in_their_order() -> None:
    for wrong in ([(P, Rules()), (G, Rules())], [(G, Rules()), (G, Rules())]):
        with pytest.raises(ValueError, match="widest first"):
            Chain(wrong)


# Widening


@pytest.mark.parametrize(
    ("above", "overlay", "field"),
    [
        (Rules(apps=Names(deny=("bad",))), Rules(apps=Names(allow=("bad",))), "apps"),
        (Rules(apps=Names(allow=("a", "b"))), Rules(apps=Names(allow=("b", "c"))), "apps"),
        (Rules(regions=Names(allow=("eu-1",))), Rules(regions=Names(allow=("eu-*",))), "regions"),
        (Rules(skus=Names(allow=())), Rules(skus=Names(allow=("*",))), "skus"),
        (
            Rules(sources=Names(allow=("oci://a.example/x/*",))),
            Rules(sources=Names(allow=("oci://a.example/*",))),
            "sources",
        ),
        (Rules(gpus_max=4), Rules(gpus_max=5), "gpus_max"),
        (Rules(signatures=Signatures.EVERYTHING), Rules(signatures=Signatures.IMAGES), "signatures"),
    ],
)
def test_an_overlay_that_says_more_is_refused(above: Rules, overlay: Rules, field: str) -> None:
    (found,) = widenings([(G, above)], overlay)
    with pytest.raises(Refusal) as refused:
        refuse_widening([(G, above)], overlay)

    assert (found.field, found.layer) == (field, G)
    assert refused.value.code is Code.POLICY_WIDENS
    assert isinstance(refused.value.details["widenings"], list)
    assert refused.value.details["widenings"][0]["field"] == field


def test_an_overlay_that_narrows_or_says_nothing_is_taken() -> None:
    above = Rules(
        apps=Names(allow=("a*",), deny=("ab",)), gpus_max=4, signatures=Signatures.IMAGES, regions=Names(deny=("us-1",))
    )
    for overlay in (
        Rules(),
        Rules(apps=Names(allow=("aa", "ac*"), deny=("zz",)), gpus_max=4),
        Rules(apps=Names(allow=()), signatures=Signatures.EVERYTHING, gpus_max=0),
        Rules(regions=Names(allow=("eu-1",))),
    ):
        refuse_widening([(G, above)], overlay)


def test_the_subjects_that_are_decided_by_names_have_a_field_each() -> None:
    assert all(isinstance(getattr(Rules(), field), Names) for field in LISTS.values())
    assert [subject.value for subject in LISTS] == list(Request._fields[: len(LISTS)])
