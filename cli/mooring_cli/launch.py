"""`mooring launch` and `stop`, also as verbs of `mooring instances`: plan, launch, watch and stop an instance."""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from mooring_cli import output, request_body
from mooring_cli.columns import OF_NOUN
from mooring_cli.commands import confirm
from mooring_cli.connect import find as find_endpoint
from mooring_cli.connect import open_in_browser
from mooring_cli.failures import NoSuchName
from mooring_cli.invocation import Invocation, current, plain_call
from mooring_cli.main import MooringCommand
from mooring_cli.name_matching import suggestion
from mooring_cli.scope import ScopeResolver
from mooring_cli.watch import find, wait_for_instance

NAME_LENGTH_MAX = 40


@click.command(cls=MooringCommand)
@click.argument("app")
@click.option("--name", metavar="NAME", help="The instance's name. [default: the app's name and a random suffix]")
@click.option("--project", metavar="NAME", help="The project, by id or slug.")
@click.option("--version", metavar="VERSION", help="An exact version.")
@click.option("--channel", type=click.Choice(["stable", "canary"]), help="The newest version in this channel.")
@click.option("--sku", metavar="SLUG", help="Request capacity of this SKU: one allocation for each member.")
@click.option("--shape", type=click.Choice(["baremetal", "gpu_slice"]), help="The shape of the requested capacity.")
@click.option("--gpu-count", type=click.IntRange(min=0), help="GPUs of each allocation.")
@click.option("--region", metavar="REGION", help="The region of the requested capacity.")
@click.option("--keep-allocations", is_flag=True, help="Keep the requested allocations when the instance is stopped.")
@click.option("--allocation", "allocations", multiple=True, metavar="NAME", help="Use this allocation; repeatable.")
@click.option(
    "--config", "config", multiple=True, metavar="KEY=VALUE", help="A value of the configuration; repeatable."
)
@click.option("--config-file", metavar="FILE", help="The configuration from JSON or YAML; - is stdin.")
@click.option(
    "--topology", multiple=True, metavar="COMPONENT=COUNT", help="Number of members of a component; repeatable."
)
@click.option(
    "--use-secret",
    "secrets",
    multiple=True,
    metavar="VARIABLE=NAME",
    help="Give the app's programs a secret of the project as a variable; repeatable.",
)
@click.option("--service-account", metavar="NAME", help="The service account that the app's adapter uses.")
@click.option("--operating-mode", metavar="MODE", help="How the app is operated.")
@click.option("--control-plane-scope", metavar="SCOPE", help="Who owns the app's control plane.")
@click.option("--topology-mode", metavar="LABEL", help="A label for the adapter.")
@click.option("--plan", is_flag=True, help="Only show what would be launched, what it costs and what blocks it.")
@click.option("--wait/--no-wait", "waits", default=False, help="Wait until it runs or has failed.")
@click.option("--open", "opens", is_flag=True, help="Wait until it runs, and open its page in a browser.")
@click.option(
    "--idempotency-key", metavar="KEY", help="Requests with the same key take effect once. [default: a new key]"
)
def launch(*, app: str, project: str | None, plan: bool, waits: bool, opens: bool, **given: Any) -> int | None:
    """Launch an app into existing allocations, or into capacity that is requested with it.

    Without --sku and --allocation it requests the only SKU that fits, in its smallest size. The manifest says how many
    members each component has, unless --topology does.

    A value of --config is parsed as JSON if possible, otherwise it is text: --config port=8080 --config motd=hello.

    \b
    mooring launch hello --open
    mooring launch hello --name pair --topology web=2 --wait
    """
    invocation = current()
    resolver = ScopeResolver(invocation)
    path = {"project_id": resolver.project_id(project)}
    body = body_of(resolver, path, app, given)
    from mooring_sdk import CallOptions

    options = CallOptions(idempotency_key=given["idempotency_key"])
    with _app_in_catalog(invocation, path, app):
        choose_capacity(invocation, path, body)
        if plan:
            show_plan(invocation, invocation.call("plan_instance", path, None, body))
            return None
        made = invocation.call("create_instance", path, None, body, options=options)
    if not waits and not opens:
        output.show(invocation.output, made)
        if invocation.output == "table":
            output.note(f"Run mooring instances watch {made['name']} to see its progress.")
        return None
    if invocation.output == "table":
        output.note(f"Launched {made['name']}: {made['id']}")
        output.note(f"Its correlation id is {made['correlation_id']}.")
    code = wait_for_instance(invocation, {**path, "instance_id": made["id"]}, made)
    if opens and not code:
        open_in_browser(invocation, path["project_id"], find_endpoint(invocation, path["project_id"], made["id"]))
    return code


@contextmanager
def _app_in_catalog(invocation: Invocation, path: dict[str, str], app: str) -> Iterator[None]:
    """Answer for an app that does not exist with the most similar one of the catalog."""
    from mooring_sdk import MooringError, errors

    try:
        yield
    except errors.NotFound as error:
        if error.details.get("noun") != "app":
            raise
        try:
            listed = list(invocation.client.pages(plain_call("list_project_catalog", path, {"limit": 500})))
        except MooringError:
            listed = []  # who may not read the catalog gets the server's answer
        if not (near := suggestion(listed, app, ("slug",), "app")):
            raise
        raise NoSuchName(f"there is no app {app!r} in the catalog of this project{near}") from error


def choose_capacity(invocation: Invocation, path: dict[str, str], body: dict[str, Any]) -> None:
    """Request the only SKU that fits and has a machine, in its smallest size, unless the caller names capacity."""
    placement = body.get("placement", {})
    if "sku" in placement or "allocations" in placement:
        return
    shapes = invocation.call("plan_instance", path, None, body)["shapes"]
    fitting = [
        each
        for each in shapes
        if each["fits"]
        and placement.get("shape", each["shape"]) == each["shape"]
        and placement.get("gpu_count", each["gpu_count"]) == each["gpu_count"]
        and placement.get("region", each["regions"][0]) in each["regions"]
    ]
    fitting = [each for each in fitting if each["available"]] or fitting
    names = sorted({str(each["sku"]) for each in fitting})
    if len(names) > 1:
        raise click.UsageError(f"several SKUs fit; give one of them: --sku {' or --sku '.join(names)}")
    if fitting:
        smallest = min(fitting, key=lambda each: int(each["gpu_count"]))
        body["placement"] = {**placement, "sku": names[0], "gpu_count": smallest["gpu_count"]}
        return
    offered = sorted({str(each["sku"]) for each in shapes})
    if len(offered) == 1:  # the server's answer about it says why it does not fit
        smallest = min(int(each["gpu_count"]) for each in shapes)
        body["placement"] = {"gpu_count": smallest, **placement, "sku": offered[0]}


def body_of(resolver: ScopeResolver, path: dict[str, str], app: str, given: dict[str, Any]) -> dict[str, Any]:
    """The body of the request; it leaves out what was not given, so that the server chooses."""
    placement = {
        "allocations": [resolver.reference("allocation_id", each, path) for each in given["allocations"]] or None,
        "sku": given["sku"],
        "shape": given["shape"],
        "gpu_count": given["gpu_count"],
        "region": given["region"],
        "keep_allocations": given["keep_allocations"] or None,
    }
    account = given["service_account"]
    body = {
        "app": app,
        "name": given["name"] or f"{app[: NAME_LENGTH_MAX - 5]}-{secrets.token_hex(2)}",
        "version": given["version"],
        "channel": given["channel"],
        "config": config_of(given["config_file"], given["config"]) or None,
        "topology": dict(map(counted, given["topology"])) or None,
        "placement": {name: value for name, value in placement.items() if value is not None} or None,
        "service_account_id": resolver.reference("service_account_id", account, path) if account else None,
        "operating_mode": given["operating_mode"],
        "control_plane_scope": given["control_plane_scope"],
        "topology_mode": given["topology_mode"],
        "secrets": dict(map(variable, given["secrets"])) or None,
    }
    return {name: value for name, value in body.items() if value is not None}


def config_of(file: str | None, pairs: tuple[str, ...]) -> dict[str, Any]:
    """The configuration: the file, overridden by the command line."""
    config: dict[str, Any] = request_body.read_body(file) if file else {}
    for pair in pairs:
        name, given, value = pair.partition("=")
        if not given or not name:
            raise click.UsageError(f"--config {pair}: expected KEY=VALUE")
        config[name] = read_value(value)
    return config


def read_value(text: str) -> Any:
    """JSON if the text is JSON, otherwise the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def counted(pair: str) -> tuple[str, int]:
    """Parse `worker=3`."""
    name, given, count = pair.partition("=")
    if not given or not name or not count.isdigit():
        raise click.UsageError(f"--topology {pair}: expected COMPONENT=COUNT")
    return name, int(count)


def variable(pair: str) -> tuple[str, str]:
    """Parse `HF_TOKEN=hub-token`; what is wrong is not repeated, because it may be the value of a secret."""
    name, given, secret = pair.partition("=")
    if not given or not name or not secret:
        raise click.UsageError("--use-secret: expected VARIABLE=NAME, the name of a secret of the project")
    return name, secret


def show_plan(invocation: Invocation, plan: dict[str, Any]) -> None:
    """Print a plan: what would be launched, what it costs, and what blocks it."""
    if invocation.output != "table":
        output.show(invocation.output, plan)
        return
    version = plan["version"]
    topology = ", ".join(f"{name} {count}" for name, count in plan["topology"].items())
    expected = plan["expected"]
    output.show(
        "table",
        {
            "launchable": plan["launchable"],
            "version": None if version is None else version["version"] + (" (canary)" if version["canary"] else ""),
            "topology": topology or None,
            "new_allocations": plan["new_allocations"],
            "price": ", ".join(
                f"{each['minor_per_hour'] / 100:.2f} {each['currency']} an hour" for each in plan["price"]
            ),
            "policy": _policy_text(plan["policy"]),
            "placement": placement_text(plan.get("placement")),
            "adapter": adapter_text(plan.get("adapter")),
            "time_to_ready": "not known yet" if expected["seconds"] is None else f"about {expected['seconds']:.0f} s",
        },
    )
    if plan["shapes"]:
        click.echo("")
        output.show_table(plan["shapes"], OF_NOUN["shape"], wide=invocation.wide)
    for each in plan["hindrances"]:
        click.echo(output.plain(f"blocked: {each['code']}: {each['detail']}"))


def _policy_text(policy: dict[str, Any]) -> str:
    """The decision of the policy, with the layer that made it."""
    if policy.get("layer") is None:
        return str(policy["reason"])
    verb = "allowed" if policy["allowed"] else "denied"
    return f"{verb} by the {policy['layer']} policy: {policy['reason']}"


def placement_text(placement: dict[str, Any] | None) -> str | None:
    """Where a plan says that the new allocations go, for people."""
    if placement is None:
        return None
    if placement["fits_now"]:
        return "there is room now"
    return f"no room now: {placement['because']}; what would help: {placement['smallest_change']}"


def adapter_text(adapter: dict[str, Any] | None) -> str | None:
    """Whether a plan says that an adapter listens, for people."""
    if adapter is None:
        return None
    if adapter["listening"]:
        return "one listens"
    return f"none listens; one was last seen: {adapter['last_seen_at'] or 'never'}"


@click.command(cls=MooringCommand)
@click.argument("instance")
@click.option("--project", metavar="NAME", help="The project, by id or slug.")
@click.option("--wait/--no-wait", "waits", default=False, help="Wait until it is stopped, and show the proof.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--idempotency-key", metavar="KEY", help="Requests with the same key take effect once. [default: a new key]"
)
def stop(*, instance: str, project: str | None, waits: bool, yes: bool, idempotency_key: str | None) -> int | None:
    """Stop an instance for good, and tear everything down.

    With --wait the command watches until each member has its proof: the receipt of a node that checked and found
    nothing left.
    """
    from mooring_sdk import CallOptions

    invocation = current()
    path = find(invocation, ScopeResolver(invocation).project_id(project), instance, whole=True)
    confirm(invocation, f"stop instance {instance}", yes)
    options = CallOptions(idempotency_key=idempotency_key)
    operation = invocation.call("stop_instance", path, options=options)
    if not waits:
        output.show(invocation.output, operation)
        return None
    stopping = invocation.call("get_instance", path)
    code = wait_for_instance(invocation, path, stopping, since=operation["created_at"])
    call = plain_call("list_closing_records", path, {"limit": 500})
    proofs = [
        {**each, "receipt_id": (each.get("receipt") or {}).get("receipt_id")} for each in invocation.client.pages(call)
    ]
    if invocation.output == "json":
        for proof in proofs:
            click.echo(json.dumps({"kind": "proof", **proof}, ensure_ascii=False))
    elif proofs:
        output.show(invocation.output, proofs, OF_NOUN["closing record"], wide=invocation.wide)
    return code
