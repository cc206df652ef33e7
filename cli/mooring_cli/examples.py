"""The examples of `--help`: one or two lines for each command that show how it is called.

Generated commands get an example from their arguments and required options, hand-written ones have theirs here. A test
parses all of them.
"""

from typing import TYPE_CHECKING

import click

from mooring_cli.nouns import REMOVALS

if TYPE_CHECKING:
    from mooring_cli.nouns import CommandEndpoint, Field, Verb

OF_COMMAND: dict[str, tuple[str, ...]] = {
    "up": ("mooring up --try", "mooring up --port 7420 --no-node"),
    "try console": ("mooring try console", "mooring try console --data-dir /srv/mooring"),
    "try remove": ("mooring try remove", "mooring try remove --data-dir /srv/mooring --yes"),
    "login": (
        "mooring login --url http://127.0.0.1:7420 --email admin@mooring.local --one-time-code",
        "mooring login --context ann --tenant acme --email ann@acme.example",
    ),
    "logout": ("mooring logout", "mooring logout --context ann"),
    "whoami": ("mooring whoami", "mooring whoami -o json"),
    "password": ("mooring password",),
    "context list": ("mooring context list",),
    "context show": ("mooring context show",),
    "context use": ("mooring context use ann",),
    "context set": ("mooring context set --project vision",),
    "context delete": ("mooring context delete ann --yes",),
    "why": ("mooring why greeter", "mooring why op_01m7prhrvd41zagask73nvqbf6"),
    "attention": ("mooring attention", "mooring attention --platform --severity critical"),
    "launch": ("mooring launch hello --open", "mooring launch hello --name pair --topology web=2 --wait"),
    "open": ("mooring open greeter", "mooring open greeter/web"),
    "stop": ("mooring stop greeter --wait --yes",),
    "logs": (
        "mooring logs greeter --follow",
        "mooring logs hpc hpc-worker-0 --tail 20",
        "mooring logs hpc --merged --grep ERROR",
    ),
    "connect": ("mooring connect greeter --port 8080", "mooring connect hpc --shell"),
    "exec": ("mooring exec box -- sh",),
    "events": ("mooring events", "mooring events --follow --project vision"),
    "cost": ("mooring cost --by app", "mooring cost --since 7d --by day", "mooring cost --platform --by tenant"),
    "usage": ("mooring usage", "mooring usage greeter --since 7d --by day_unit"),
    "ledger": ("mooring ledger --project vision", "mooring ledger --kind correction --since 30d -o json"),
    "ledger balances": ("mooring ledger balances --tenant acme",),
    "audit": ("mooring audit --outcome denied", "mooring audit --actor usr_01m7prfg8vf0b82h3bp844cnk4"),
    "audit export": ("mooring audit export --tenant acme > audit.jsonl",),
    "billing prove": ("mooring billing prove --platform --from 2026-03-01",),
    "billing correct": (
        "mooring billing correct ltx_01m7prfg8vf0b82h3bp844cnk4 --minor -125 --reason 'the node was slow for an hour'",
    ),
    "audit verify": ("mooring audit verify --tenant acme",),
    "outbox list": ("mooring outbox list --project vision",),
    "outbox show": ("mooring outbox show DELIVERY",),
    "outbox replay": ("mooring outbox replay DELIVERY",),
    "receipts list": ("mooring receipts list --allocation box",),
    "receipts get": ("mooring receipts get rcp_01m7prhzvrccpht8d2fs2ampr3",),
    "receipts export": ("mooring receipts export rcp_01m7prhzvrccpht8d2fs2ampr3 > receipt.json",),
    "receipts verify": ("mooring receipts verify receipt.json",),
    "statements list": ("mooring statements list", "mooring statements list --platform --status open"),
    "statements show": ("mooring statements show 2026-10", "mooring statements show 2026-10 --group-by app -o json"),
    "statements export": (
        "mooring statements export 2026-10 --out october.csv",
        "mooring statements export 2026-10 --format html --out october.html",
    ),
    "statements close": ("mooring statements close stm_01m7prhzvrccpht8d2fs2ampr3 --tenant acme",),
    "root-key create": ("mooring root-key create --private-key-file root.pem",),
    "root-key sign": ("mooring root-key sign --private-key-file root.pem key.json",),
    "manifest init": ("mooring manifest init hello",),
    "manifest lint": ("mooring manifest lint mooring.yaml",),
    "manifest explain": ("mooring manifest explain topology",),
    "apps check": ("mooring apps check my-app", "mooring apps check my-app --instance first"),
    "apps from-image": (
        "mooring apps from-image localhost/welcome --open",
        "mooring apps from-image ./layout --slug welcome --until manifest",
    ),
    "bundle": ("mooring bundle my-app --out my-app.tar",),
    "publish": ("mooring publish my-app --promote staged",),
    "install": ("mooring install hello.json",),
    "adapter init": ("mooring adapter init --language python my-app",),
    "adapter dev": ("mooring adapter dev --manifest manifest.json --profile profile.json python3 adapter.py",),
    "adapter test": ("mooring adapter test -- mooring-echo",),
    "schema": ("mooring schema instances",),
    "explain": ("mooring explain not_entitled", "mooring explain states"),
    "completion": ('eval "$(mooring completion bash)"',),
    "version": ("mooring version", "mooring version --client"),
    "help": ("mooring help instances launch",),
    "instances replay": ("mooring instances replay greeter",),
    "instances launch": (
        "mooring instances launch hello --name greeter --sku slice --gpu-count 1 --wait",
        "mooring instances launch hello --name greeter --sku slice --topology web=2 --plan",
    ),
    "nodes label": ("mooring nodes label gpu-1 rack=a7", "mooring nodes label gpu-1 rack-"),
    "instances watch": ("mooring instances watch greeter",),
    "instances stop": ("mooring instances stop greeter --wait --yes",),
}

SAMPLES = {
    "account_name": "ann",
    "action": "restart",
    "allocation": "box",
    "app": "hello",
    "app_slug": "hello",
    "billing": "charged",
    "artifact": "sha256:58e96101e9f4",
    "attachment": "ann",
    "category": "web",
    "component": "worker",
    "count": "1",
    "currency": "EUR",
    "digest": "sha256:58e96101e9f4",
    "display_name": "Vision",
    "email": "ann@acme.example",
    "endpoint": "web",
    "entitlement": "hello",
    "expires_in_seconds": "30d",
    "gpu_count": "1",
    "gpu_model": "simulated",
    "instance": "greeter",
    "item": "unit",
    "item_key": "hello/token_out",
    "kind": "oci",
    "location": "oci://registry.example/hello",
    "member": "greeter-web-0",
    "minor": "250",
    "name": "box",
    "node": "gpu-1",
    "price_minor_per_gpu_hour": "250",
    "project": "vision",
    "reason": '"the team needs it"',
    "region": "local",
    "root_signature": "BASE64",
    "service_account": "robot",
    "sku": "slice",
    "slug": "vision",
    "tenant": "acme",
    "type": "process.run",
    "unit": "token_out",
    "url": "https://hooks.example/mooring",
    "user": "ann@acme.example",
    "version": "1.0.0",
}


def of_command(path: str) -> tuple[str, ...]:
    """The examples of a hand-written command, by its words after `mooring`."""
    return OF_COMMAND.get(path, ())


def of_verb(path: str, verb: "Verb") -> tuple[str, ...]:
    """An example of a generated command: its arguments and its required options."""
    if path in OF_COMMAND:
        return OF_COMMAND[path]
    endpoint = verb.endpoints[0]
    words = ["mooring", path, *(sample(name.removesuffix("_id")) for name in endpoint.arguments), *options(endpoint)]
    if endpoint.deletes or endpoint.operation in REMOVALS:
        words.append("--yes")
    return (" ".join(words),)


def options(endpoint: "CommandEndpoint") -> list[str]:
    """The required options with sample values."""
    return [word for field in (*endpoint.query, *endpoint.body) if field.required for word in option(field)]


def option(field: "Field") -> list[str]:
    if field.kind == "boolean":
        return [f"--{field.option}"]
    if field.kind == "secret":
        return [f"--{field.option}-file", "FILE"]
    name = f"--{field.option.removesuffix('s') if field.kind == 'list' else field.option}"
    return [name, field.choices[0] if field.choices else value_of(field)]


def value_of(field: "Field") -> str:
    last = field.path[-1]
    if last.endswith("_pem") or field.kind == "json":
        return "'[1, 2]'" if last.endswith("counts") else "@FILE"
    if field.kind in ("integer", "number"):
        return SAMPLES.get(last, "1")
    if field.kind == "time":
        return "30d"
    return sample(last.removesuffix("_id"))


def sample(name: str) -> str:
    """A value that reads well; otherwise the name in capitals."""
    return SAMPLES.get(name) or SAMPLES.get(name.removesuffix("s")) or name.upper()


def write(formatter: click.HelpFormatter, lines: tuple[str, ...]) -> None:
    """Write the section of examples at the end of a help."""
    if lines:
        with formatter.section("Examples"):
            for line in lines:
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")
