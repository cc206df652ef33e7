"""`mooring apps from-image`: from an image of one's own to a running app.

Each step looks first at what is there, so the same command continues after any failure, and does nothing twice. What
the steps share is a bundle in a directory: `manifest.yaml`, which is the developer's to edit, and `bundle.yaml`, which
names the image. `mooring publish` takes the same directory.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from mooring_cli import output
from mooring_cli.bundle import read_bundle
from mooring_cli.commands import confirm
from mooring_cli.connect import find as find_endpoint
from mooring_cli.connect import open_in_browser
from mooring_cli.failures import is_answer
from mooring_cli.image_config import ImageConfig, ImageRefused, read_config
from mooring_cli.image_manifest import manifest_text, new_version, slug_of, with_image
from mooring_cli.image_push import push
from mooring_cli.image_source import OpenedImage, opened_image
from mooring_cli.invocation import Invocation, current, plain_call
from mooring_cli.launch import choose_capacity
from mooring_cli.main import MooringCommand
from mooring_cli.publish import BundlePublisher
from mooring_cli.scope import ScopeResolver
from mooring_cli.watch import wait_for_instance

STEPS = ("manifest", "lint", "push", "publish", "entitle", "launch")
MANIFEST, BUNDLE, ROLE = "manifest.yaml", "bundle.yaml", "main"
ADAPTER_SECONDS_MAX = 60.0
POLL_SECONDS = 0.5
WIDTH = max(map(len, STEPS))


@click.command("from-image", cls=MooringCommand)
@click.argument("reference", metavar="IMAGE")
@click.option("--slug", metavar="SLUG", help="The app's slug. [default: the image's name]")
@click.option("--directory", type=click.Path(file_okay=False), help="Where the bundle is. [default: the slug]")
@click.option("--until", type=click.Choice(STEPS), default="launch", show_default=True, help="The last step.")
@click.option("--only", type=click.Choice(STEPS), multiple=True, help="Only this step; repeatable.")
@click.option("--port", type=click.IntRange(1, 65_535), help="The port of its page. [default: the image's first]")
@click.option(
    "--protocol", type=click.Choice(["http", "tcp"]), default="http", show_default=True, help="What it speaks."
)
@click.option("--health-path", metavar="PATH", help="A path that answers once it is ready. [default: the image's]")
@click.option("--version", metavar="VERSION", help="The version. [default: 0.1.0; the next patch for another image]")
@click.option("--architecture", metavar="NAME", help="Of an image for several. [default: this machine's]")
@click.option("--category", metavar="WORD", default="web", show_default=True, help="The category of a new app.")
@click.option("--tenant", metavar="NAME", help="The tenant, by id or slug. [default: the caller's own]")
@click.option("--project", metavar="NAME", help="The project, by id or slug.")
@click.option("--name", metavar="NAME", help="The instance's name. [default: the slug]")
@click.option("--reason", default="published from an image", show_default=True, help="Recorded in the audit trail.")
@click.option("--open", "opens", is_flag=True, help="Open its page in a browser.")
@click.option("-y", "--yes", is_flag=True, help="Agree to what its operator account may do without being asked.")
def from_image(*, reference: str, until: str, only: tuple[str, ...], **given: Any) -> int | None:
    """Create an app from an image and launch it: manifest, lint, push, publish, entitle, launch.

    IMAGE is a directory with an OCI layout, a podman image, or REGISTRY/NAME:TAG. Run the command again at any time: it
    continues where it stopped. --until stops after a step, --only runs just the given steps. The manifest is yours to
    edit: after it is written, only its digest and version change. A changed image becomes a new version.
    """
    steps = [each for each in STEPS[: STEPS.index(until) + 1] if not only or each in only]
    work = ImageApp(current(), reference, given)
    if {"manifest", "push"} & set(steps):
        with opened_image(reference, given["architecture"]) as image:
            work.open(image)
            for step in steps[: _last(steps, ("manifest", "lint", "push"))]:
                work.do(step)
    for step in [each for each in steps if each not in work.done]:
        work.do(step)
    return work.end()


def _last(steps: list[str], names: tuple[str, ...]) -> int:
    return max((number + 1 for number, each in enumerate(steps) if each in names), default=0)


@dataclass(frozen=True)
class ImageFacts:
    """The opened image with its config."""

    image: OpenedImage
    config: ImageConfig


class ImageApp:
    """An app that is made of an image, step by step."""

    def __init__(self, invocation: Invocation, reference: str, given: dict[str, Any]) -> None:
        self._invocation, self._given = invocation, given
        self._slug: str = given["slug"] or slug_of(reference)
        self._directory = Path(given["directory"] or self._slug)
        self._resolver = ScopeResolver(invocation)
        self._facts: ImageFacts | None = None
        self._began = time.monotonic()
        self._shown: dict[str, Any] = {"app": self._slug, "directory": str(self._directory)}
        self._code: int | None = None
        self.done: list[str] = []

    def open(self, image: OpenedImage) -> None:
        self._facts = ImageFacts(image, read_config(image.config, image.health))
        self._shown["digest"] = image.digest

    def do(self, step: str) -> None:
        {
            "manifest": self._manifest,
            "lint": self._lint,
            "push": self._push,
            "publish": self._publish,
            "entitle": self._entitle,
            "launch": self._launch,
        }[step]()
        self.done.append(step)

    def end(self) -> int | None:
        if self._invocation.output != "table":
            output.show(self._invocation.output, self._shown)
        else:
            output.note(f"Done in {time.monotonic() - self._began:.1f} s.")
        return self._code

    # The steps

    def _manifest(self) -> None:
        assert self._facts is not None
        image, config = self._facts.image, self._facts.config
        file = self._directory / MANIFEST
        if file.is_file():
            self._say("manifest", self._continued(file, image.digest))
            return
        text = manifest_text(
            self._slug,
            self._given["version"] or "0.1.0",
            image.digest,
            config,
            port=self._given["port"],
            protocol=self._given["protocol"],
            path=self._given["health_path"],
        )
        self._directory.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        self._say("manifest", f"wrote {file}")
        for note in config.notes:
            self._say("", note)

    def _continued(self, file: Path, digest: str) -> str:
        """Keep the manifest; another image, or another version that was asked for, changes only these lines."""
        text = file.read_text(encoding="utf-8")
        stored = yaml.safe_load(text)
        if not isinstance(stored, dict) or not isinstance(stored.get("artifacts"), dict) or "version" not in stored:
            raise ImageRefused(f"{file} is not a manifest: it has no artifacts or no version; delete it to begin again")
        if stored.get("app") != self._slug:
            raise ImageRefused(f"{file} is of the app {stored.get('app')}; give --slug or another --directory")
        changed = stored["artifacts"].get(ROLE) != digest
        before = str(stored["version"])
        version = self._given["version"] or (new_version(before) if changed else before)
        if not changed and version == before:
            return f"kept {file}, version {before}"
        file.write_text(with_image(text, ROLE, digest, version), encoding="utf-8")
        return f"changed {file}: {'another image, ' if changed else ''}version {version}"

    def _lint(self) -> None:
        manifest = self._stored_manifest()
        body = {"manifest": manifest, "app_slug": self._slug}
        findings = self._invocation.call("lint_manifest", body=body)["findings"]
        for each in findings:
            self._say("", f"{each['severity']}: {each['pointer'] or '/'}: {each['reason']}; {each['fix']}")
        wrong = [each for each in findings if each["severity"] == "error"]
        if wrong:
            raise ImageRefused(f"{self._directory / MANIFEST} has {len(wrong)} errors; correct them and run it again")
        self._say("lint", f"no errors, {len(findings)} warnings")

    def _push(self) -> None:
        assert self._facts is not None
        image = self._facts.image
        location = image.location
        if location is None:
            location = self._pushed(image)
        else:
            self._say("push", f"it stays in its registry: {location}")
        document = {"bundle_format": 1, "manifest": MANIFEST, "references": {ROLE: f"{location}@{image.digest}"}}
        self._directory.mkdir(parents=True, exist_ok=True)
        (self._directory / BUNDLE).write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")

    def _pushed(self, image: OpenedImage) -> str:
        try:
            place = {"tenant_id": self._tenant_id}
            intent = self._invocation.call("publish_tenant_artifact", place, None, {"name": self._slug})
        except Exception as error:
            if is_answer(error) and error.code == "not_supported":
                raise ImageRefused(
                    "this Mooring has no registry of its own to push to: `mooring up` runs one where docker-registry "
                    "is installed, MOORING_REGISTRY_URL names one; or push it elsewhere, and give REGISTRY/NAME:TAG"
                ) from error
            raise
        sent = push(image, intent, lambda text: self._say("push", text))
        self._say("push", f"{intent['location']}@{image.digest[:19]}, {sent} bytes sent")
        return str(intent["location"])

    def _publish(self) -> None:
        if not (self._directory / BUNDLE).is_file():
            raise ImageRefused(f"there is no {self._directory / BUNDLE}; the step push writes it")
        self._app()
        bundle = read_bundle(self._directory)
        publisher = BundlePublisher(self._invocation, self._tenant_id, self._given["reason"])
        version = publisher.publish(bundle, "active", 100.0)
        self._shown |= {"version": version["version"], "status": version["status"]}
        done = "published" if publisher.changed else "nothing to do for"
        self._say("publish", f"{done} version {version['version']}, {version['status']}")

    def _app(self) -> str:
        """The id of the app; it is registered if it is not there."""
        place = {"tenant_id": self._tenant_id}
        listed = self._invocation.client.pages(plain_call("list_tenant_apps", place, {"limit": 500}))
        found = [str(each["id"]) for each in listed if each["slug"] == self._slug]
        if found:
            return found[0]
        title = self._slug.replace("-", " ").capitalize()
        body = {"slug": self._slug, "display_name": title, "category": self._given["category"]}
        made = self._invocation.call("create_tenant_app", place, None, body)
        self._say("publish", f"registered the app {self._slug}")
        return str(made["id"])

    def _entitle(self) -> None:
        path = {"project_id": self._project_id}
        app_id = self._app()
        listed = self._invocation.client.pages(plain_call("list_entitlements", path, {"limit": 500}))
        known = next((each for each in listed if each["app_id"] == app_id), None)
        required = sorted(self._stored_manifest().get("required_actions") or [])
        if known is not None and known["enabled"] and not known["missing_actions"] and _is_operated(known):
            self._say("entitle", f"the project is entitled; operated by the {_operator(known)}")
            return
        what = f"let the operator account of {self._slug} do {', '.join(required)} in this project"
        self._say("entitle", what)
        confirm(self._invocation, what, self._given["yes"])
        terms = {"agreed_actions": required, "enabled": True, "reason": self._given["reason"]}
        if known is None:
            made = self._invocation.call("create_entitlement", path, None, {"app_id": app_id, **terms})
        else:
            terms = {**{key: known[key] for key in ("versions", "rules", "revision")}, **terms}
            one = {**path, "entitlement_id": known["id"]}
            made = self._invocation.call("update_entitlement", one, None, terms)
        if not _is_operated(made):
            raise ImageRefused(
                "nobody operates it: the platform's admin sets the key of the workload adapter once, with "
                "`mooring workload-adapter set-key --public-key KEY`; then run this again"
            )
        self._say("entitle", f"agreed; operated by the {_operator(made)}")

    def _launch(self) -> None:
        path, name = {"project_id": self._project_id}, self._given["name"] or self._slug
        listed = self._invocation.client.pages(plain_call("list_instances", path, {"limit": 500}))
        running = next((each for each in listed if each["name"] == name and each["status"] != "stopped"), None)
        if running is None:
            body: dict[str, Any] = {"app": self._slug, "name": name}
            choose_capacity(self._invocation, path, body)
            self._wait_for_adapter(path, body)
            running = self._invocation.call("create_instance", path, None, body)
            self._say("launch", f"launched {name}: {running['id']}")
        else:
            self._say("launch", f"{name} is there already, {running['status']}")
        self._shown |= {"instance": name, "instance_id": running["id"]}
        if running["status"] != "running":
            self._code = wait_for_instance(self._invocation, {**path, "instance_id": running["id"]}, running)
        if self._code:
            return
        if self._given["opens"]:
            endpoint = find_endpoint(self._invocation, path["project_id"], running["id"])
            open_in_browser(self._invocation, path["project_id"], endpoint)
        else:
            self._say("launch", f"mooring open {name} opens its page; mooring stop {name} --wait ends it")

    def _wait_for_adapter(self, path: dict[str, str], body: dict[str, Any]) -> None:
        """Launch nothing that nobody would start: the capacity would be charged while it waits."""
        until = time.monotonic() + ADAPTER_SECONDS_MAX
        while True:
            plan = self._invocation.call("plan_instance", path, None, body)
            if plan["hindrances"]:
                return  # the launch itself says what is wrong, with its code
            if plan["adapter"] is not None and plan["adapter"]["listening"]:
                return
            if time.monotonic() > until:
                raise ImageRefused(
                    f"no adapter has asked for work on {self._slug} for {ADAPTER_SECONDS_MAX:.0f} s, so nothing was "
                    "launched: is the workload adapter (mooring-workload) running?"
                )
            time.sleep(POLL_SECONDS)

    # What they share

    @property
    def _tenant_id(self) -> str:
        return self._resolver.tenant_id(self._given["tenant"])

    @property
    def _project_id(self) -> str:
        return self._resolver.project_id(self._given["project"])

    def _stored_manifest(self) -> dict[str, Any]:
        file = self._directory / MANIFEST
        try:
            stored = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise ImageRefused(f"{file} cannot be read: {error}; the step manifest writes it") from error
        if not isinstance(stored, dict):
            raise ImageRefused(f"{file} is not a manifest")
        return stored

    def _say(self, step: str, text: str) -> None:
        if self._invocation.output == "table":
            output.note(output.plain(f"{step:<{WIDTH}}  {text}"))


def _is_operated(entitlement: dict[str, Any]) -> bool:
    return bool(entitlement.get("operated_by", "nobody") != "nobody")


def _operator(entitlement: dict[str, Any]) -> str:
    return "platform's workload adapter" if entitlement["operated_by"] == "platform" else "app's own adapter"
