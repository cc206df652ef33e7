"""Histories: what an adapter and a person ask for, chosen by a seed, most of it sensible and much of it not.

A history is chosen while it runs, by the records of the simulated platform: so it gets far into the life of an
instance. Ids stand in it as names (`@member-0`), which each platform replaces by its own.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, Final

from mooring_adapter.conformance.fake_records import FakeInstance, FakeMember, FakeOperation
from server.tests.support import manifests

MEMBER_STATES: Final = ("joining", "ready", "degraded", "drained", "failed")
ABSURD: Final = ("removed", "READY", "")
FAILURE: Final = {"code": "runtime_error", "detail": "it broke", "last_lines": ["one", "two"]}
VERBS: Final = (
    "drain", "drain", "remove", "resume", "resume", "cancel", "cancel", "add", "upgrade", "upgrade", "restart",
    "reconcile", "repair", "configure", "action", "stop",
)  # fmt: skip
LAUNCH: Final = {"name": "web", "image": {"artifact": "main"}}
TASKS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("container.launch", LAUNCH),
    ("container.launch", {"name": "web", "image": {"digest": manifests.digest("a")}}),
    ("container.launch", {"name": "web", "image": {"digest": manifests.digest("b")}}),
    ("container.launch", {"name": "web", "image": {"digest": manifests.digest("c")}}),
    ("container.launch", {"name": "web", "image": {"artifact": "nobody"}}),
    ("container.launch", {**LAUNCH, "environment_secrets": {"TOKEN": "token"}}),
    ("container.launch", {**LAUNCH, "imge": {}}),
    ("container.control", {"name": "web", "action": "inspect"}),
    ("container.control", {"name": "web", "action": "stop"}),
    ("process.run", {"argv": ["true"]}),
    ("process.run", {"argv": []}),
    ("files.write", {"files": [{"path": "/a", "content": "b"}]}),
    ("files.write", {"files": [{"path": "/a", "content": "b", "directory": True}]}),
    ("probe.tcp", {"port": 80}),
    ("probe.tcp", {"prot": 80}),
    ("log.read", {"service": "web", "max_bytes": 1_000_000}),
    ("teardown.verify", {}),
    ("no.such", {}),
)


@dataclass(slots=True)
class AdapterRequest:
    """A request of an adapter with names for ids, or with `verb` a request of a person."""

    path: str = ""
    body: dict[str, Any] = field(default_factory=dict)
    method: str = "POST"
    query: dict[str, str] = field(default_factory=dict)
    verb: str = ""


@dataclass(slots=True)
class HistoryWriter:
    """Chooses the next request by the state of the simulated platform."""

    chance: Random
    instance: FakeInstance
    number: int
    names: dict[str, str]  # the history's name of each id of the simulated platform
    last: AdapterRequest | None = None
    held: int = 0  # the newest fence that the adapter was given

    def next(self) -> AdapterRequest:
        """The next request; now and then the last one once more."""
        chance = self.chance
        if self.instance.claim.holder is None and chance.random() < 0.7:
            return self._poll()
        if self.last is not None and chance.random() < 0.06:
            return self.last
        choose = chance.choices(
            [
                self._report,
                self._finish,
                self._task,
                self._tasks,
                self._secret,
                self._usage,
                self._poll,
                self._release,
                self._read,
                self._person,
            ],
            [30, 14, 14, 4, 6, 4, 5, 1, 16, 16],
        )[0]
        request = choose()
        if not request.verb and chance.random() < 0.08:
            request = self._broken(request)
        self.last = request
        return request

    def deployment(self) -> list[AdapterRequest]:
        """What a well-behaved adapter sends until the instance runs."""
        report = "/instances/@instance/reports"
        named = {"fence": 1, "operation_id": "@operation-0"}
        members = [self.names[each] for each in self.instance.members]
        states = [
            {**named, "begin": status == "joining", "members": [{"id": each, "status": status} for each in members]}
            for status in ("joining", "ready")
        ]
        end = {"fence": 1, "outcome": "succeeded"}
        return [
            AdapterRequest("/claims", {"holder": "one", "free": 1, "held": []}),
            *(AdapterRequest(report, each) for each in states),
            AdapterRequest("/instances/@instance/operations/@operation-0/finish", end),
        ]

    # What is named ---------------------------------------------------------------------------------------------------

    def _fence(self) -> int:
        fence = self.instance.claim.fence
        return fence if self.chance.random() < 0.96 else fence + self.chance.choice((-1, 1))

    def _instance(self) -> str:
        (name,) = self.chance.choices(["@instance", "@foreign", "@nobody-instance"], [97, 2, 1])
        return f"/instances/{name}"

    def _member(self) -> str:
        known = [self.names[each.id] for each in self.instance.members.values()]
        if self.chance.random() < 0.03:
            return self.chance.choice(["@foreign-member", "@nobody-member"])
        return self.chance.choice(known)

    def _operation(self) -> str:
        every = list(self.instance.operations.values())
        opened = [each for each in every if each.is_offered]
        if self.chance.random() < 0.03:
            return "@nobody-operation"
        return self.names[self.chance.choice(opened if opened and self.chance.random() < 0.85 else every).id]

    def _record(self, name: str) -> FakeOperation | FakeMember | None:
        for operation in self.instance.operations.values():
            if self.names[operation.id] == name:
                return operation
        return next((each for each in self.instance.members.values() if self.names[each.id] == name), None)

    # Requests --------------------------------------------------------------------------------------------------------

    def _poll(self) -> AdapterRequest:
        chance = self.chance
        held = [{"instance_id": "@instance", "fence": self._fence()}] if chance.random() < 0.5 else []
        body = {"holder": chance.choice(("one", "one", "two")), "free": chance.choice((0, 1, 5, 5, 5)), "held": held}
        return AdapterRequest("/claims", body)

    def _release(self) -> AdapterRequest:
        held = [{"instance_id": "@instance", "fence": self._fence()}]
        return AdapterRequest("/releases", {"holder": self.chance.choice(("one", "two")), "held": held})

    def _read(self) -> AdapterRequest:
        tasks = [self.names[each] for each in self.instance.tasks if each in self.names]
        rest = f"/tasks/{self.chance.choice(tasks)}" if tasks and self.chance.random() < 0.2 else ""
        return AdapterRequest(f"{self._instance()}{rest}", method="GET", query={"fence": str(self._fence())})

    def _report(self) -> AdapterRequest:
        chance, body = self.chance, dict[str, Any](fence=self._fence())
        if chance.random() < 0.8:
            body["operation_id"] = self._operation()
            operation = self._record(body["operation_id"])
            begun = isinstance(operation, FakeOperation) and operation.started_at is not None
            body["begin"] = chance.random() < (0.15 if begun else 0.8)
        if chance.random() < 0.3:
            body["steps"] = [self._step() for _ in range(chance.choice((1, 1, 2)))]
        if chance.random() < 0.12:
            body["blocked"] = chance.choice((None, {"code": "quota", "detail": "none is left"}))
        if chance.random() < 0.7:
            reported = [self._reported() for _ in range(chance.choice((1, 1, 2, 3)))]
            once = list({each["id"]: each for each in reported}.values())
            body["members"] = once if chance.random() < 0.97 else reported
        if chance.random() < 0.25:
            body["instance"] = self._whole()
        return AdapterRequest(f"{self._instance()}/reports", body)

    def _step(self) -> dict[str, Any]:
        chance = self.chance
        status = chance.choice(("pending", "running", "done", "failed"))
        step = dict[str, Any](name=f"start {chance.randrange(3)}", status=status)
        if chance.random() < 0.3:
            step["progress"] = {"done": chance.randrange(9), "total": 9}
        return step | ({"detail": "a line"} if chance.random() < 0.3 else {})

    def _reported(self) -> dict[str, Any]:
        chance, body = self.chance, dict[str, Any](id=self._member())
        member = self._record(body["id"])
        onward = {"requested": "joining", "joining": "ready", "draining": "drained", "degraded": "ready"}
        status = onward.get(getattr(member, "status", ""), "ready")
        if chance.random() < 0.9:
            body["status"] = status if chance.random() < 0.6 else chance.choice(MEMBER_STATES)
        if (body.get("status") == "failed" and chance.random() < 0.9) or chance.random() < 0.03:
            body["failure"] = FAILURE
        if chance.random() < 0.3:
            body["health"] = chance.choice(("healthy", "degraded", "unknown"))
        if chance.random() < 0.1:
            body["health_detail"] = chance.choice((None, "slow"))
        if chance.random() < 0.35:
            body["version"] = chance.choice(("1.0.0", "1.1.0", "1.1.0", "1.1.0", "9.9.9"))
        if chance.random() < 0.15:
            body["detail"] = {"pid": chance.randrange(3)}
        if chance.random() < 0.1:
            body["holds"] = [{"reason": "rebalancing"}] if chance.random() < 0.6 else []
        return body

    def _whole(self) -> dict[str, Any]:
        chance, body = self.chance, dict[str, Any]()
        if chance.random() < 0.6:
            body["health"] = chance.choice(("healthy", "degraded"))
        if chance.random() < 0.5:
            endpoint = {"name": "web", "member_id": self._member(), "protocol": "http", "port": 8080}
            terminal = {"name": "shell", "protocol": "terminal"}
            others = ({"port": 8081}, terminal, {"name": "b"}, {**terminal, "port": None}, {"name": "b", "user": "a"})
            body["endpoints"] = [endpoint, endpoint | chance.choice(others)] if chance.random() < 0.4 else [endpoint]
        if chance.random() < 0.2:
            body["detail"] = {"jobs": chance.randrange(3)}
        return body | ({"topology_mode": "flat"} if chance.random() < 0.2 else {})

    def _finish(self) -> AdapterRequest:
        chance, name = self.chance, self._operation()
        operation = self._record(name)
        cancelling = isinstance(operation, FakeOperation) and operation.status == "cancelling"
        outcome = "cancelled" if cancelling and chance.random() < 0.6 else "succeeded"
        if chance.random() < 0.2:
            outcome = chance.choice(("failed", "cancelled", "succeeded"))
        body = dict[str, Any](fence=self._fence(), outcome=outcome)
        if outcome == "failed" and chance.random() < 0.9:
            body["failure"] = FAILURE
        is_action = isinstance(operation, FakeOperation) and operation.kind == "action"
        if (is_action and chance.random() < 0.8) or chance.random() < 0.03:
            body["output"] = chance.choice(({"id": 1}, {"id": 1}, {"id": "one"}, {}))
        if chance.random() < 0.2:
            body["evidence"] = {"seen": True}
        return AdapterRequest(f"{self._instance()}/operations/{name}/finish", body)

    def _wanted(self) -> dict[str, Any]:
        chance = self.chance
        kind, arguments = chance.choice(TASKS)
        member = self._member()
        step = f"start/{member[1:]}/{chance.randrange(3)}"
        body = dict[str, Any](member_id=member, type=kind, step=step)
        body["arguments"] = arguments
        if chance.random() < 0.2:
            body["step"] = chance.choice(("shared", "shared", "shared", "shared", "tunnel/1", "has space", ""))
        if ("environment_secrets" in arguments and chance.random() < 0.8) or chance.random() < 0.04:
            body["grants"] = [{"name": "token", "secret": chance.choice(("token", "token", "nobody"))}]
        return body

    def _task(self) -> AdapterRequest:
        body = {"fence": self._fence(), **self._wanted()}
        if self.chance.random() < 0.8:
            body["operation_id"] = self._operation()
        elif body["step"]:
            body["step"] = f"{self.number}/{body['step']}"  # a look's name is unique in its allocation, which all share
        return AdapterRequest(f"{self._instance()}/tasks", body)

    def _tasks(self) -> AdapterRequest:
        wanted = [self._wanted() for _ in range(self.chance.choice((0, 1, 2, 3)))]
        body = {"fence": self._fence(), "tasks": wanted, "operation_id": self._operation()}
        return AdapterRequest(f"{self._instance()}/tasks:batch", body)

    def _secret(self) -> AdapterRequest:
        chance, generated = self.chance, {"generate_bytes": 32}
        purposes = ("app_access", "app_access", "app_access", "cluster_key", "cluster_key", "artifact_pull")
        body = dict[str, Any](fence=self._fence(), name=chance.choice(("token", "token", "token", "key", "Not A Name")))
        body["purpose"] = chance.choice(purposes)
        body |= chance.choice((generated, generated, generated, {"value": "x"}, {}, {"generate_bytes": 1}))
        return AdapterRequest(f"{self._instance()}/secrets", body)

    def _usage(self) -> AdapterRequest:
        chance, start = self.chance, self.instance.created_at
        records = []
        for _ in range(chance.choice((1, 1, 2))):
            seconds = chance.choice((0, 0, 0, 0, -90, 9_000))
            moment = (start + timedelta(seconds=seconds)).isoformat()
            unit = chance.choice(("tokens", "tokens", "tokens", "hours"))
            number = chance.randrange(3)
            quantity = number if chance.random() < 0.9 else number + 1
            record = {"record_id": f"r-{number}", "unit": unit, "quantity": quantity}
            records.append({**record, "started_at": moment, "ended_at": moment})
        return AdapterRequest(f"{self._instance()}/usage", {"fence": self._fence(), "records": records})

    def _person(self) -> AdapterRequest:
        verb = self.chance.choice(VERBS)
        body = {"member_id": self._known_member(verb), "operation_id": self._known_operation()}
        return AdapterRequest(body=body, verb=verb)

    def _known_member(self, verb: str) -> str:
        members = self.instance.members
        leaving = [each for each in members if members[each].status in ("draining", "drained")]
        return self.names[self.chance.choice(leaving if leaving and verb == "resume" else list(members))]

    def _known_operation(self) -> str:
        opened = [each.id for each in self.instance.open_operations] or list(self.instance.operations)
        return self.names[self.chance.choice(opened)]

    def _broken(self, request: AdapterRequest) -> AdapterRequest:
        """The request with a mistake in its body: a typo, something missing, or something of the wrong kind."""
        body, chance = dict(request.body), self.chance
        if not body:
            return AdapterRequest(request.path, method=request.method, query={})
        key = chance.choice(sorted(body))
        match chance.randrange(4):
            case 0:
                body[f"{key}s"] = body.pop(key)
            case 1:
                body[key] = chance.choice((None, "x", -1, ["x"], {"x": 1}))
            case 2:
                del body[key]
            case _:
                body = self._broken_inside(body)
        return AdapterRequest(request.path, body, request.method, request.query)

    def _broken_inside(self, body: dict[str, Any]) -> dict[str, Any]:
        for key in ("members", "steps", "tasks", "records", "held"):
            if isinstance(body.get(key), list) and body[key]:
                first = {**body[key][0], self.chance.choice(("detials", "state")): self.chance.choice(ABSURD)}
                return {**body, key: [first, *body[key][1:]]}
        return {**body, "colour": "blue"}
