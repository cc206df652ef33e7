"""Policy: which sources, regions, SKUs, apps, signatures and GPU counts are allowed, and which layer decides.

A policy is a chain of layers: global → tenant → project, followed by the entitlement of a project. Something is allowed
when every layer allows it. So a layer can only narrow, whatever it says, and a denial further up is final; a later
change of an upper layer needs no comparison with the layers below. A layer that allows more than the layers above it is
refused when it is written (`widenings`), because the addition would have no effect and would mislead its reader.

An allow list of None allows everything; otherwise only the listed names are allowed. A deny list has precedence over
the allow list. A name may end with `*`. The strictest layer decides which signatures are required. The maximum of GPUs
is what one project may have at once; the smallest value applies. What happens to an instance whose artifacts are no
longer trusted is what the strictest layer says; without a rule of the platform, it is `refuse`, and no layer below can
say less.

A chain is compiled once (`PolicyChain`) and then used often: a decision only evaluates layers that have rules.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from mooring.core.catalog.artifact_location import covers
from mooring.core.kernel.errors import Code, Refusal

GPUS_MAX: Final = 1_000_000


class Layer(StrEnum):
    """The layers of a policy, from the widest to the narrowest."""

    GLOBAL = "global"
    TENANT = "tenant"
    PROJECT = "project"
    ENTITLEMENT = "entitlement"


class Subject(StrEnum):
    """What a decision is about."""

    SOURCE = "source"
    REGION = "region"
    SKU = "sku"
    APP = "app"
    SIGNATURE = "signature"
    GPUS = "gpus"


class SignatureRules(IntEnum):
    """Which artifacts need the signature of a trusted key."""

    NONE = 0
    IMAGES = 1
    EVERYTHING = 2


class Reaction(IntEnum):
    """What happens to a running instance whose artifacts are no longer trusted; each one includes those before it.

    What would fetch or start the bytes again is refused at every level.
    """

    NOTIFY = 0  # tell its project
    REFUSE = 1  # also refuse actions and new attachments
    DRAIN = 2  # also drain its members
    STOP = 3  # stop it


REACTION_DEFAULT: Final = Reaction.REFUSE
"""Safe and not destructive: nothing new starts, and nothing that runs is ended."""
REACTION_NAME: Final[Mapping[str, Reaction]] = {each.name.lower(): each for each in Reaction}


SIGNATURES_NAME: Final[Mapping[str, SignatureRules]] = {each.name.lower(): each for each in SignatureRules}


@dataclass(frozen=True, slots=True)
class NameRules:
    """Which names are allowed (None means all), and which are denied nevertheless."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRules:
    """The rules of one layer; an empty layer allows everything that the layers above allow."""

    sources: NameRules = field(default_factory=NameRules)
    regions: NameRules = field(default_factory=NameRules)
    skus: NameRules = field(default_factory=NameRules)
    apps: NameRules = field(default_factory=NameRules)
    signatures: SignatureRules | None = None
    gpus_max: int | None = None
    record_exec: bool = False  # whether exec sessions are recorded; no layer below can refuse
    untrusted_instances: Reaction | None = None


LISTS: Final[Mapping[Subject, str]] = {
    Subject.SOURCE: "sources",
    Subject.REGION: "regions",
    Subject.SKU: "skus",
    Subject.APP: "apps",
}
"""The subjects with lists of names, and the field of `PolicyRules` for each."""


class PolicyRequest(NamedTuple):
    """What to decide about; fields that are None are not checked."""

    source: str | None = None
    region: str | None = None
    sku: str | None = None
    app: str | None = None
    gpus: int | None = None  # the total that the project would have, including this request
    signed: bool | None = None
    image: bool = True  # whether `signed` is about an image


class PolicyVerdict(NamedTuple):
    """The decision, and the layer that made it."""

    allowed: bool
    layer: Layer | None = None
    subject: Subject | None = None
    value: str = ""
    reason: str = "every layer allows it"

    def refusal(self) -> Refusal | None:
        """The refusal for a denial; None when it is allowed."""
        if self.allowed or self.layer is None or self.subject is None:
            return None
        code = Code.SOURCE_DENIED if self.subject is Subject.SOURCE else Code.POLICY_DENIED
        return Refusal(
            code,
            f"the {self.layer} policy does not allow {self.subject} {self.value}: {self.reason}",
            {"layer": self.layer.value, "subject": self.subject.value, "value": self.value, "reason": self.reason},
        )


ALLOWED: Final = PolicyVerdict(True)
NO_RULE: Final = "the layer has no rule for it"


class _Matcher:
    """A compiled list of names and prefixes."""

    __slots__ = ("exact", "prefixes")

    def __init__(self, patterns: Sequence[str]) -> None:
        self.exact = frozenset(each for each in patterns if not each.endswith("*"))
        self.prefixes = tuple(each[:-1] for each in patterns if each.endswith("*"))

    def __contains__(self, name: str) -> bool:
        return name in self.exact or (bool(self.prefixes) and name.startswith(self.prefixes))


class LayerRules(NamedTuple):
    """A layer and its rules, as a link of a chain."""

    layer: Layer
    rules: PolicyRules


class _Compiled(NamedTuple):
    """A compiled layer that has rules."""

    layer: Layer
    checks: tuple[
        tuple[int, Subject, _Matcher | None, _Matcher | None], ...
    ]  # index in the request, subject, allowed, denied
    signatures: SignatureRules
    gpus_max: int | None


class PolicyChain:
    """The compiled layers of one place. It is immutable; a changed policy makes a new chain."""

    __slots__ = ("_compiled", "layers")
    layers: tuple[LayerRules, ...]

    def __init__(self, layers: Sequence[LayerRules], above: "PolicyChain | None" = None) -> None:
        known = above.layers if above is not None else ()
        self.layers = (*known, *layers)
        order = list(Layer)
        if [layer for layer, _ in self.layers] != sorted({layer for layer, _ in self.layers}, key=order.index):
            raise ValueError("each layer may occur once, the widest first")
        compiled = (_compile(layer, rules) for layer, rules in layers)
        with_rules = tuple(each for each in compiled if each.checks or each.signatures or each.gpus_max is not None)
        self._compiled: tuple[_Compiled, ...] = (*above._compiled, *with_rules) if above is not None else with_rules

    def narrowed(self, layer: Layer, rules: PolicyRules) -> "PolicyChain":
        """The chain with one more layer at its end; the compiled layers are reused."""
        return PolicyChain((LayerRules(layer, rules),), self)

    def decide(self, request: PolicyRequest) -> PolicyVerdict:
        """Whether every layer allows the request; otherwise the verdict of the widest layer that denies it."""
        names = (request.source, request.region, request.sku, request.app)
        for layer, checks, signatures, gpus_max in self._compiled:
            for index, subject, allowed, denied in checks:
                name = names[index]
                if name is None:
                    continue
                if denied is not None and name in denied:
                    return PolicyVerdict(False, layer, subject, name, self._denied_by(layer, subject, name))
                if allowed is not None and name not in allowed:
                    return PolicyVerdict(False, layer, subject, name, "it is not on the allow list")
            if gpus_max is not None and request.gpus is not None and request.gpus > gpus_max:
                reason = f"the project would have {request.gpus} GPUs, and at most {gpus_max} are allowed"
                return PolicyVerdict(False, layer, Subject.GPUS, str(request.gpus), reason)
            if request.signed is False and signatures >= (
                SignatureRules.IMAGES if request.image else SignatureRules.EVERYTHING
            ):
                return PolicyVerdict(
                    False, layer, Subject.SIGNATURE, "unsigned", "a signature by a trusted key is required"
                )
        return ALLOWED

    def requires_signature(self, *, image: bool) -> bool:
        """Whether an artifact needs the signature of a trusted key."""
        return not self.decide(PolicyRequest(signed=False, image=image)).allowed

    @property
    def gpus_max(self) -> int | None:
        """The most GPUs that the project may have at once; None means no limit."""
        return min((each.gpus_max for each in self._compiled if each.gpus_max is not None), default=None)

    @property
    def reaction(self) -> "LayerReaction":
        """What happens to instances whose artifacts are no longer trusted, and the widest layer that says so."""
        decisive = LayerReaction(REACTION_DEFAULT, None)
        for layer, rules in self.layers:
            wanted = rules.untrusted_instances
            if wanted is not None and (layer is Layer.GLOBAL or wanted > decisive.reaction):
                decisive = LayerReaction(wanted, layer)
        return decisive

    def explain(self, request: PolicyRequest) -> tuple[PolicyVerdict, ...]:
        """The verdict of each layer on each part of the request, in the order of the chain."""
        return tuple(_answer(layer, rules, part) for layer, rules in self.layers for part in _single(request))

    def _denied_by(self, layer: Layer, subject: Subject, name: str) -> str:
        names: NameRules = getattr(dict(self.layers)[layer], LISTS[subject])
        return f"the deny list has {next(each for each in names.deny if covers(each, name))!r}"


class LayerReaction(NamedTuple):
    """A reaction, and the layer that asks for it; None is the default of the platform."""

    reaction: Reaction
    layer: Layer | None


class Widening(NamedTuple):
    """Something that a layer allows although a layer above does not."""

    field: str
    value: str
    layer: Layer
    reason: str


def widenings(above: Sequence[LayerRules], overlay: PolicyRules, layer: Layer = Layer.PROJECT) -> tuple[Widening, ...]:
    """Everything that the overlay, as this layer, allows although a layer above does not."""
    widened = [each for upper, rules in above for each in _widens(upper, rules, overlay)]
    return (*widened, *(_relaxes(above, overlay) if layer is not Layer.GLOBAL else ()))


def refuse_widening(above: Sequence[LayerRules], overlay: PolicyRules, layer: Layer = Layer.PROJECT) -> None:
    """Refuse an overlay that allows more than the layers above it."""
    found = widenings(above, overlay, layer)
    if found:
        first = found[0]
        raise Refusal(
            Code.POLICY_WIDENS,
            f"{first.field} {first.value}: {first.reason} ({first.layer} layer)",
            {"widenings": [each._asdict() | {"layer": each.layer.value} for each in found[:100]]},
        )


def _relaxes(above: Sequence[LayerRules], overlay: PolicyRules) -> Iterator[Widening]:
    """A reaction that is weaker than that of the layers above, or than the default if they have none."""
    wanted, required = overlay.untrusted_instances, PolicyChain(tuple(above)).reaction
    if wanted is None or wanted >= required.reaction:
        return
    reason = f"{required.reaction.name.lower()} is required there"
    yield Widening("untrusted_instances", wanted.name.lower(), required.layer or Layer.GLOBAL, reason)


def _compile(layer: Layer, rules: PolicyRules) -> _Compiled:
    checks = []
    for index, (subject, field_) in enumerate(LISTS.items()):
        names: NameRules = getattr(rules, field_)
        if names.allow is not None or names.deny:
            allowed = None if names.allow is None else _Matcher(names.allow)
            checks.append((index, subject, allowed, _Matcher(names.deny) if names.deny else None))
    return _Compiled(layer, tuple(checks), rules.signatures or SignatureRules.NONE, rules.gpus_max)


def _single(request: PolicyRequest) -> Iterator[PolicyRequest]:
    """The request split into its parts."""
    for name in ("source", "region", "sku", "app", "gpus"):
        if (value := getattr(request, name)) is not None:
            yield PolicyRequest(**{name: value})
    if request.signed is not None:
        yield PolicyRequest(signed=request.signed, image=request.image)


def _answer(layer: Layer, rules: PolicyRules, part: PolicyRequest) -> PolicyVerdict:
    verdict = PolicyChain((LayerRules(layer, rules),)).decide(part)
    if not verdict.allowed:
        return verdict
    if part.gpus is not None:
        reason = NO_RULE if rules.gpus_max is None else f"at most {rules.gpus_max} are allowed"
        return PolicyVerdict(True, layer, Subject.GPUS, str(part.gpus), reason)
    if part.signed is not None:
        required = rules.signatures
        reason = NO_RULE if required is None else f"signatures are required for {required.name.lower()}"
        return PolicyVerdict(True, layer, Subject.SIGNATURE, "signed" if part.signed else "unsigned", reason)
    subject, value = next((each, getattr(part, each.value)) for each in LISTS if getattr(part, each.value) is not None)
    names: NameRules = getattr(rules, LISTS[subject])
    if names.allow is not None:
        pattern = next(each for each in names.allow if covers(each, value))
        reason = f"the allow list has {pattern!r}"
    else:
        reason = "it is not on the deny list" if names.deny else NO_RULE
    return PolicyVerdict(True, layer, subject, value, reason)


def _widens(layer: Layer, above: PolicyRules, overlay: PolicyRules) -> Iterator[Widening]:
    for name in LISTS.values():
        upper: NameRules = getattr(above, name)
        for wanted in getattr(overlay, name).allow or ():
            if any(covers(denied, wanted) for denied in upper.deny):
                yield Widening(name, wanted, layer, "it is denied there")
            elif upper.allow is not None and not any(covers(allowed, wanted) for allowed in upper.allow):
                yield Widening(name, wanted, layer, "it is not allowed there")
    if above.gpus_max is not None and overlay.gpus_max is not None and overlay.gpus_max > above.gpus_max:
        yield Widening("gpus_max", str(overlay.gpus_max), layer, f"at most {above.gpus_max} are allowed there")
    if above.signatures is not None and overlay.signatures is not None and overlay.signatures < above.signatures:
        required = above.signatures.name.lower()
        yield Widening("signatures", overlay.signatures.name.lower(), layer, f"{required} is required there")
