"""The catalog's part of the demo: an image becomes an app that a project may launch, or is told why it may not.

All of it goes through Mooring's public API, but for what a developer does with tools of his own: making the image,
pushing it to the registry with a token of some minutes, and signing it with a key that Mooring never sees.
"""

import asyncio
from dataclasses import dataclass

from mooring.gateways.signing.cosign_keys import SigningKey, new_signing_key
from mooring.gateways.signing.cosign_sign import sign_as_tag
from mooring_sdk import Client, MooringError, models
from tools.demo_registry import Image, push, pushing, small_image
from tools.demo_telling import DemoFailed, heading, tell

WHY = "the demo shows it"
APP = "beacon"
VERSION = "1.0.0"


@dataclass(frozen=True)
class Shelf:
    """The tenant's admin at work, for one project."""

    client: Client
    tenant_id: str
    project: models.Project


def show_catalog(shelf: Shelf) -> None:
    """The whole of it."""
    artifact, intent = push_an_image(shelf)
    have_it_verified(shelf, artifact, intent)
    app_id, version_id = publish_an_app(shelf, artifact)
    entitle(shelf, app_id)
    refuse_by_policy(shelf)
    heading("Who moved the version, and why")
    for step in shelf.client.get_tenant_version_history(shelf.tenant_id, app_id, version_id).items:
        moved = f"{step.before or '(new)'} → {step.after}"
        print(f"   {step.occurred_at:%H:%M:%S}  {moved:<20} {step.actor_kind} {step.actor_id}  {step.reason or ''}")


def push_an_image(shelf: Shelf) -> tuple[models.Artifact, models.Publish]:
    """From the intent to publish to a registered digest."""
    heading("A developer publishes an image")
    client = shelf.client
    rules = models.RulesBody(signatures="images")
    client.update_tenant_policy(shelf.tenant_id, rules=rules, reason="only what we signed is launched")
    tell("policy", "this tenant launches signed images only")
    intent = client.publish_tenant_artifact(shelf.tenant_id, name=APP)
    tell("may push to", f"{intent.location}, and nowhere else, for some minutes")
    image: Image = small_image()
    asyncio.run(push(intent, image))
    tell("pushed", f"an image of {sum(map(len, image.blobs))} bytes, made on the spot")
    artifact = client.register_tenant_artifact(
        shelf.tenant_id, kind="oci", location=intent.location, digest=image.digest
    )
    tell("registered", f"{artifact.id} as {artifact.digest}")
    return artifact, intent


def have_it_verified(shelf: Shelf, artifact: models.Artifact, intent: models.Publish) -> None:
    """Refused without a signature of a trusted key, verified with one."""
    heading("It has to be signed by a key that the tenant trusts")
    client = shelf.client
    refused_to_stage(shelf, artifact)
    key: SigningKey = new_signing_key()
    asyncio.run(pushing(intent, lambda pusher: sign_as_tag(pusher, intent.repository, artifact.digest, key)))
    tell("signed", "with a fresh key pair; the signature lies beside the image, as cosign puts it")
    trusted = client.add_tenant_signer_key(shelf.tenant_id, name="release", public_key_pem=key.trusted("").pem)
    tell("trusted", f"{trusted.name}, {trusted.algorithm}, {trusted.fingerprint[:23]}…")
    verified = client.verify_tenant_artifact(shelf.tenant_id, artifact.id)
    tell("trust now", verified.trust)
    if verified.trust != "verified":
        raise DemoFailed(f"the signed image is {verified.trust}: {[each.reason for each in verified.doubts]}")


def refused_to_stage(shelf: Shelf, artifact: models.Artifact) -> None:
    """What is not signed goes nowhere."""
    try:
        shelf.client.promote_tenant_artifact(shelf.tenant_id, artifact.id, move="stage", reason=WHY)
    except MooringError as refused:
        tell("staging refused", f"{refused.status} {refused.code}: {refused.detail}")
        if refused.code != "signature_missing":
            raise
    else:
        raise DemoFailed("an image without a signature could be staged")


def publish_an_app(shelf: Shelf, artifact: models.Artifact) -> tuple[str, str]:
    """An app with a version, which goes with its artifact from draft to active."""
    heading("An app and its version go from draft to everybody")
    client, tenant_id = shelf.client, shelf.tenant_id
    app = client.create_tenant_app(tenant_id, slug=APP, display_name="Hello", category="web")
    manifest = {
        "manifest_version": 1,
        "app": APP,
        "version": VERSION,
        "artifact_kind": "oci",
        "artifacts": {"main": artifact.digest},
        "runtime_profile": {"image": "main"},
    }
    version = client.create_tenant_version(tenant_id, app.id, manifest=manifest)
    tell("app", f"{app.slug} ({app.id})")
    tell("version", f"{version.version} ({version.id}), its image by digest")
    for move, share, why, offered in (
        ("stage", None, "tried by the team", "its first projects are yet to come"),
        ("canary", 10.0, "some projects first", "offered to a tenth of the projects"),
        ("activate", None, "the first ones fared well", "offered to every entitled project"),
    ):
        moved = client.promote_tenant_artifact(tenant_id, artifact.id, move=move, reason=why)
        version = client.promote_tenant_version(
            tenant_id, app.id, version.id, move=move, reason=why, canary_percentage=share
        )
        tell(move, f"the artifact is {moved.promotion}, the version {version.status}: {offered}")
    return app.id, version.id


def entitle(shelf: Shelf, app_id: str) -> None:
    """The project's catalog before and after."""
    heading(f"The catalog of the project {shelf.project.slug}")
    before = tell_entry(shelf, "before")
    shelf.client.create_entitlement(shelf.project.id, app_id=app_id, reason=WHY)
    tell("entitled", "the tenant's admin lets the project launch it; no service account can")
    after = tell_entry(shelf, "after")
    if "not_entitled" not in codes(before) or "not_entitled" in codes(after):
        raise DemoFailed("the entitlement made no difference")


def refuse_by_policy(shelf: Shelf) -> None:
    """A layer of the policy denies the app, and says which layer it was and why."""
    heading("A policy refuses, and explains itself")
    rules = models.RulesBody(apps=models.NamesRule(deny=[f"{APP[:3]}*"]))
    shelf.client.update_project_policy(shelf.project.id, rules=rules, reason="not in this project")
    explained = shelf.client.explain_project_policy(shelf.project.id, app=APP)
    tell("allowed", "yes" if explained.allowed else f"no, decided by the {explained.decided_by} layer")
    tell("because", explained.reason)
    if "policy_denied" not in codes(tell_entry(shelf, "the catalog")) or explained.allowed:
        raise DemoFailed("the policy made no difference")


def codes(entry: models.CatalogEntry) -> set[str]:
    """What hinders; where this machine is no node, capacity does in any case."""
    return {each.code for each in entry.hindrances}


def tell_entry(shelf: Shelf, name: str) -> models.CatalogEntry:
    """How the project sees the app."""
    (entry,) = shelf.client.list_project_catalog(shelf.project.id).items
    number = entry.version.version if entry.version else "-"
    reasons = "; ".join(f"{each.code}: {each.reason}" for each in entry.hindrances)
    tell(
        name,
        f"{entry.slug} {number}, " + ("may be launched" if entry.launchable else f"may not be launched: {reasons}"),
    )
    return entry
