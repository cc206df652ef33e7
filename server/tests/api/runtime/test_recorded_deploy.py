"""The deployment of an app on the wire: every request of an adapter and its response, as the docs show it.

`docs/app-teams/deploy-on-the-wire.md` is what this test records, with ids, times and secrets replaced. If the contract
changes, `MOORING_RECORD=1` in the environment of this test writes the page again.
"""

import base64
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from mooring.core.fleet.task import TASK, TaskState, TaskTrigger
from mooring.core.kernel.decision import StateChange
from mooring.core.runtime.operation import OperationKind
from mooring.gateways.signing.signatures import new_key_pair
from server.tests.api.catalog.test_apps import AppPublisher
from server.tests.api.catalog.test_apps import publisher as bare_publisher
from server.tests.conftest import World
from server.tests.support.adapter_site import RUNTIME, AdapterClient
from server.tests.support.launching import Launching, make_launching
from server.tests.support.lifecycle_rows import CLOCK
from server.tests.support.service_accounts import AccountWithKey, assertion

__all__ = ["bare_publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

PAGE: Final = Path(__file__).resolve().parents[4] / "docs" / "app-teams" / "deploy-on-the-wire.md"
CONTRACT: Final = PAGE.parents[1] / "adapter-contract.md"
HEAD: Final = """# A deployment on the wire

Every request of an adapter during one deployment, in order, with the response of the platform. A test records this
page from a running platform: ids, times and secrets are replaced, the manifest is left out.
[The adapter contract](../adapter-contract.md) explains each call.
"""
LEFT_OUT: Final = {"manifest": "…", "access_token": "…", "assertion": "eyJ…", "cursor": "…", "after": "…", "etag": "…"}
ID: Final = re.compile(r"\b([a-z]{2,4})_[0-9a-z]{26}\b")
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
HEX: Final = re.compile(r"\b[0-9a-f]{32}\b")
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
NUMBERED: Final = re.compile(r"\b(tool|sku|acme|train)-\d+\b")
START: Final = {"name": "web", "argv": ["python3", "-m", "http.server", "8080"]}
PROBE: Final = {"port": 8080, "path": "/", "attempts": 20, "interval_seconds": 0.5}


class Recording:
    """The exchanges of an adapter, each under a heading."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.heading = ""

    def watch(self, client: httpx.AsyncClient) -> httpx.AsyncClient:
        client.event_hooks = {"response": [self._add]}
        return client

    async def _add(self, response: httpx.Response) -> None:
        await response.aread()
        request = response.request
        lines = [f"{request.method} {request.url.raw_path.decode()}"]
        lines += [f"{name}: {shown}" for name, shown in _headers(request)]
        body = request.content.decode()
        is_form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
        sent = re.sub(r"assertion=[^&]+", "assertion=eyJ…", body) if is_form else _pretty(body)
        lines += ["", sent] if body else []
        answer = f"{response.status_code} {response.reason_phrase}\n\n{_pretty(response.text)}"
        self.parts.append(
            f"## {len(self.parts) + 1}. {self.heading}\n\n```\n{chr(10).join(lines)}\n```\n\n```\n{answer}\n```\n"
        )

    def page(self) -> str:
        """The page, with everything that differs between two runs replaced."""
        text = "\n".join([HEAD, *self.parts])
        for pattern, shown in ((TIME, "2026-01-01T12:00:00Z"), (DIGEST, "sha256:…"), (HEX, "…"), (NUMBERED, r"\1")):
            text = pattern.sub(shown, text)
        return _numbered(text, ID)


def _headers(request: httpx.Request) -> Iterable[tuple[str, str]]:
    if "authorization" in request.headers:
        yield "Authorization", "Bearer …"
    for name in ("Content-Type", "X-Correlation-ID"):
        if name in request.headers:
            yield name, request.headers[name]


def _pretty(text: str) -> str:
    return json.dumps(_without(json.loads(text)), indent=2, ensure_ascii=False) if text else ""


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: LEFT_OUT[name] if name in LEFT_OUT and each else _without(each) for name, each in value.items()}
    return [_without(each) for each in value] if isinstance(value, list) else value


def _numbered(text: str, pattern: re.Pattern[str]) -> str:
    """Ids as `ins_1`, `mem_1`, `mem_2`, in the order in which they appear."""
    known: dict[str, dict[str, str]] = {}

    def named(match: re.Match[str]) -> str:
        of_kind = known.setdefault(match[1], {})
        return of_kind.setdefault(match[0], f"{match[1]}_{len(of_kind) + 1}")

    return pattern.sub(named, text)


async def signed_in(launching: Launching, recording: Recording) -> AdapterClient:
    """An adapter that finds its account by its key, and has a token."""
    place, world = launching.publisher, launching.publisher.world
    private, public = new_key_pair()
    key = base64.urlsafe_b64encode(public).decode().rstrip("=")
    put = await place.client.put(f"{place.place}/apps/{place.app['id']}/adapter-key", json={"public_key": key})
    assert put.status_code == 200, put.text
    client = recording.watch(world.client())
    recording.heading = "Find the accounts that the key opens"
    signed = assertion(f"key:{key}", "any", private, f"{world.running.url}{RUNTIME}/accounts")
    (found,) = (await client.post(f"{RUNTIME}/accounts", json={"assertion": signed})).json()["accounts"]
    recording.heading = "Exchange an assertion for a token"
    account = AccountWithKey(found["service_account_id"], found["key_id"], private)
    token = await account.token(client)
    return AdapterClient(recording.watch(world.client(token)), "hello-7f3a", account.id)


async def node_does(launching: Launching, allocation_id: str, result: dict[str, Any]) -> None:
    """The node of the allocation does the task that waits."""
    task = await launching.site.fleet.take(allocation_id)
    edge = TASK.step(TaskState.CLAIMED, TaskTrigger.SUCCEED)
    columns = {"finished_at": CLOCK.now(), "result": result}
    move = StateChange("task", task["id"], TASK, edge, task["generation"] + 1, task["tenant_id"], columns)
    await launching.site.fleet.write(move)


async def test_the_page_shows_every_request_of_a_deployment_as_the_platform_answers_it(
    world: World, bare_publisher: AppPublisher
) -> None:
    launching = await make_launching(world, bare_publisher)
    recording = Recording()
    adapter = await signed_in(launching, recording)
    stands = await launching.site.active(launching.sku, gpu_count=1, name="box")
    place = {"placement": {"allocations": [stands["id"]]}, "service_account_id": None}
    made = await launching.launch(name="greeter", **place)
    recording.heading = "Claim what is offered"
    fence = await adapter.claim(made["id"])
    recording.heading = "Read the instance"
    view = await adapter.read(made["id"], fence)
    (deploy,), (member,) = view["operations"], view["members"]
    adapter.client.headers["X-Correlation-ID"] = deploy["correlation_id"]
    under = {"operation_id": deploy["id"]}
    recording.heading = "Begin the operation, and report that the member joins"
    joins = [{"id": member["id"], "status": "joining"}]
    await adapter.report(made["id"], fence, **under, begin=True, members=joins)
    for step, kind, arguments, result in (
        ("start", "service.start", START, {"state": "running", "pid": 4242, "started_at": 1}),
        ("probe", "probe.http", PROBE, {"latency_milliseconds": 2, "attempts": 1, "observed": "200"}),
    ):
        name = f"{step}/{member['name']}"
        recording.heading = f"Create the task `{name}`"
        task = {"step": name, "member_id": member["id"], "type": kind, "arguments": arguments}
        created = await adapter.send(made["id"], "tasks", fence, **under, **task)
        assert created.status_code == 200, created.text
        await node_does(launching, stands["id"], result)
        recording.heading = f"Wait for the end of `{name}`"
        ended = await adapter.client.get(
            f"{RUNTIME}/instances/{made['id']}/tasks/{created.json()['id']}",
            params={"fence": fence, "wait": 20, "until": "succeeded,failed,cancelled,expired"},
        )
        assert ended.json()["status"] == "succeeded", ended.text
    recording.heading = "Report that the member is ready"
    ready = [{"id": member["id"], "status": "ready", "health": "healthy"}]
    await adapter.report(made["id"], fence, **under, members=ready, instance={"health": "healthy"})
    recording.heading = "Finish the operation"
    await adapter.finish(made["id"], fence, deploy["id"], evidence={"members": 1})
    recording.heading = "Release the claim before the process ends"
    held = {"holder": adapter.holder, "held": [{"instance_id": made["id"], "fence": fence}]}
    assert (await adapter.client.post(f"{RUNTIME}/releases", json=held)).status_code == 200
    assert (await launching.get(made["id"]))["status"] == "running"

    if os.environ.get("MOORING_RECORD"):
        PAGE.write_text(recording.page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == recording.page(), "the contract changed; see the docstring of this file"


def test_the_contract_says_what_every_kind_of_operation_asks_for() -> None:
    table = (
        CONTRACT.read_text(encoding="utf-8").partition("**What an operation asks for**")[2].partition("\n\nIgnore")[0]
    )
    described = {
        kind.strip() for row in re.findall(r"^\| ([a-z, ]+) \|", table, re.MULTILINE) for kind in row.split(",")
    }
    assert described - {"kind"} == {each.value for each in OperationKind}
