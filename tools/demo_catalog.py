"""The catalog in the demo: an image becomes an app that a project may launch, or is refused with a reason.

Everything uses Mooring's public API, except what developers do with their own tools: building the image, pushing it
to the registry with a token that is valid for some minutes, and signing it with a key that Mooring never sees.
"""

import asyncio
from dataclasses import dataclass

from mooring.gateways.signing.cosign_keys import SigningKey, new_signing_key
from mooring.gateways.signing.cosign_sign import sign_as_tag
from mooring_sdk import Client, MooringError, models
from tools.demo_output import DemoFailed, heading, show_fact
from tools.demo_registry import DemoImage, push, pushing, small_image

WHY = "the demo shows it"
APP = "beacon"
VERSION = "1.0.0"

OPERATOR = ["runtime.claim", "runtime.report", "task.create"]


@dataclass(frozen=True)
class TenantCatalog:
    """The tenant's admin, working for one project."""

    client: Client
    tenant_id: str
    project: models.Project


def show_catalog(catalog: TenantCatalog) -> None:
    artifact, intent = push_an_image(catalog)
    have_it_verified(catalog, artifact, intent)
    app_id, version_id = publish_an_app(catalog, artifact)
    entitle(catalog, app_id)
    refuse_by_policy(catalog)
    heading("Who moved the version, and why")
    for step in catalog.client.get_tenant_version_history(catalog.tenant_id, app_id, version_id).items:
        moved = f"{step.before or '(new)'} → {step.after}"
        print(f"   {step.occurred_at:%H:%M:%S}  {moved:<20} {step.actor_kind} {step.actor_id}  {step.reason or ''}")


def push_an_image(catalog: TenantCatalog) -> tuple[models.Artifact, models.Publish]:
    """From the intent to publish to a registered digest."""
    heading("A developer publishes an image")
    client = catalog.client
    rules = models.RulesBody(signatures="images")
    client.update_tenant_policy(catalog.tenant_id, rules=rules, reason="only signed images are launched")
    show_fact("policy", "this tenant launches only signed images")
    intent = client.publish_tenant_artifact(catalog.tenant_id, name=APP)
    show_fact("may push to", f"{intent.location}, and only there, for some minutes")
    image: DemoImage = small_image()
    asyncio.run(push(intent, image))
    show_fact("pushed", f"an image of {sum(map(len, image.blobs))} bytes, built by the demo")
    artifact = client.register_tenant_artifact(
        catalog.tenant_id, kind="oci", location=intent.location, digest=image.digest
    )
    show_fact("registered", f"{artifact.id} as {artifact.digest}")
    return artifact, intent


def have_it_verified(catalog: TenantCatalog, artifact: models.Artifact, intent: models.Publish) -> None:
    """Refused without a signature of a trusted key, verified with one."""
    heading("It has to be signed by a key that the tenant trusts")
    client = catalog.client
    refused_to_stage(catalog, artifact)
    key: SigningKey = new_signing_key()
    asyncio.run(pushing(intent, lambda pusher: sign_as_tag(pusher, intent.repository, artifact.digest, key)))
    show_fact("signed", "with a new key pair; the signature is next to the image, as with cosign")
    trusted = client.add_tenant_signer_key(catalog.tenant_id, name="release", public_key_pem=key.trusted("").pem)
    show_fact("trusted", f"{trusted.name}, {trusted.algorithm}, {trusted.fingerprint[:23]}…")
    verified = client.verify_tenant_artifact(catalog.tenant_id, artifact.id)
    show_fact("trust now", verified.trust)
    if verified.trust != "verified":
        raise DemoFailed(f"the signed image is {verified.trust}: {[each.reason for each in verified.doubts]}")


def refused_to_stage(catalog: TenantCatalog, artifact: models.Artifact) -> None:
    """An unsigned image cannot be staged."""
    try:
        catalog.client.promote_tenant_artifact(catalog.tenant_id, artifact.id, move="stage", reason=WHY)
    except MooringError as refused:
        show_fact("staging refused", f"{refused.status} {refused.code}: {refused.detail}")
        if refused.code != "signature_missing":
            raise
    else:
        raise DemoFailed("an image without a signature could be staged")


def publish_an_app(catalog: TenantCatalog, artifact: models.Artifact) -> tuple[str, str]:
    """An app with a version, promoted with its artifact from draft to active."""
    heading("An app and its version are promoted from draft to active")
    client, tenant_id = catalog.client, catalog.tenant_id
    app = client.create_tenant_app(tenant_id, slug=APP, display_name="Hello", category="web")
    manifest = {
        "manifest_version": 1,
        "app": APP,
        "version": VERSION,
        "artifact_kind": "oci",
        "artifacts": {"main": artifact.digest},
        "required_actions": OPERATOR,
        "runtime_profile": {"image": "main"},
    }
    version = client.create_tenant_version(tenant_id, app.id, manifest=manifest)
    show_fact("app", f"{app.slug} ({app.id})")
    show_fact("version", f"{version.version} ({version.id}), its image by digest")
    for move, share, why, offered in (
        ("stage", None, "tried by the team", "no project has it yet"),
        ("canary", 10.0, "some projects first", "offered to a tenth of the projects"),
        ("activate", None, "the first projects had no problems", "offered to every entitled project"),
    ):
        moved = client.promote_tenant_artifact(tenant_id, artifact.id, move=move, reason=why)
        version = client.promote_tenant_version(
            tenant_id, app.id, version.id, move=move, reason=why, canary_percentage=share
        )
        show_fact(move, f"the artifact is {moved.promotion}, the version {version.status}: {offered}")
    return app.id, version.id


def entitle(catalog: TenantCatalog, app_id: str) -> None:
    """The project's catalog before and after."""
    heading(f"The catalog of the project {catalog.project.slug}")
    before = show_entry(catalog, "before")
    catalog.client.create_entitlement(catalog.project.id, app_id=app_id, reason=WHY, agreed_actions=OPERATOR)
    show_fact("entitled", "the tenant's admin lets the project launch it; no service account can")
    after = show_entry(catalog, "after")
    if "not_entitled" not in codes(before) or "not_entitled" in codes(after):
        raise DemoFailed("the entitlement had no effect")


def refuse_by_policy(catalog: TenantCatalog) -> None:
    """A layer of the policy denies the app; the answer says which layer and why."""
    heading("A policy refuses, and explains itself")
    rules = models.RulesBody(apps=models.NamesRule(deny=[f"{APP[:3]}*"]))
    catalog.client.update_project_policy(catalog.project.id, rules=rules, reason="not in this project")
    explained = catalog.client.explain_project_policy(catalog.project.id, app=APP)
    show_fact("allowed", "yes" if explained.allowed else f"no, decided by the {explained.decided_by} layer")
    show_fact("because", explained.reason)
    if "policy_denied" not in codes(show_entry(catalog, "the catalog")) or explained.allowed:
        raise DemoFailed("the policy had no effect")


def codes(entry: models.CatalogEntry) -> set[str]:
    """The codes of what blocks it; without a node on this machine, capacity always does."""
    return {each.code for each in entry.hindrances}


def show_entry(catalog: TenantCatalog, name: str) -> models.CatalogEntry:
    """How the project sees the app."""
    (entry,) = catalog.client.list_project_catalog(catalog.project.id).items
    number = entry.version.version if entry.version else "-"
    reasons = "; ".join(f"{each.code}: {each.reason}" for each in entry.hindrances)
    show_fact(
        name,
        f"{entry.slug} {number}, " + ("may be launched" if entry.launchable else f"may not be launched: {reasons}"),
    )
    return entry
