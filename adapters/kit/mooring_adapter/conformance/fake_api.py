"""The simulated platform's side of the adapter contract: one method for each route, over the fake store.

Every route checks the shape of the body, and those of an instance then the fence. The rules stand beside it.
"""

import base64
import binascii
import json
import secrets
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from mooring_adapter.conformance import platform_rules, report_rules, task_rules, usage_rules, violations
from mooring_adapter.conformance.fake_records import FakeAccount, FakeInstance, FakeOperation, FakeTask, later
from mooring_adapter.conformance.fake_store import FakeStore
from mooring_adapter.conformance.platform_rules import RequestRefused, invalid, not_found
from mooring_adapter.conformance.request_shape import check_body, check_fence

TOKENS: Final = "/api/v1/oauth/token"
ACCOUNTS: Final = "/api/v1/runtime/accounts"
CLOCK_SKEW_SECONDS: Final = 60.0
ASSERTION_SECONDS_MAX: Final = 300.0


@dataclass(slots=True)
class ApiRequest:
    """One request, as far as the routes read it."""

    method: str
    path: str
    query: Mapping[str, str]
    body: dict[str, Any]
    correlation_id: str = ""
    token: str | None = None


@dataclass(frozen=True, slots=True)
class ApiResponse:
    status: int
    body: dict[str, Any]


@dataclass(slots=True)
class FakeApi:
    """The routes, and the issued tokens."""

    store: FakeStore
    address: str = ""
    token_seconds: float = 1_800.0
    tokens: dict[str, tuple[str, float]] = field(default_factory=dict)  # token → account, expiry
    used: set[str] = field(default_factory=set)  # the jti of used assertions
    releases: dict[str, int] = field(default_factory=dict)  # how often a holder released claims
    forbidden: frozenset[str] = frozenset()  # actions that were taken from every account
    released: set[tuple[str, str, int]] = field(default_factory=set)  # (holder, instance, fence) of those claims

    def answer(self, request: ApiRequest) -> ApiResponse:
        """The platform's response; raises `RequestRefused` for everything that is not a success."""
        if request.path == TOKENS:
            return ApiResponse(200, self._token(request.body))
        if request.path == ACCOUNTS:
            return ApiResponse(200, self._accounts(request.body))
        generation = self.store.generation  # read first: a kill revokes the tokens before it starts a new generation
        account = self._account(request.token)
        self._require_actions(account, request)
        match request.path.removeprefix("/api/v1/runtime/").split("/"):
            case ["claims"]:
                return ApiResponse(200, self._claims(account, request.body, generation))
            case ["releases"]:
                return ApiResponse(200, self._releases(account, request.body))
            case ["instances", instance_id, *rest]:
                return self._of_instance(account, instance_id, rest, request)
        raise not_found("there is no such route")

    # Authentication --------------------------------------------------------------------------------------------------

    def _account(self, token: str | None) -> FakeAccount:
        account_id, until = self.tokens.get(token or "", ("", 0.0))
        if not account_id or until <= time.monotonic():
            raise RequestRefused(401, "unauthenticated", "the token is invalid or expired")
        return self.store.accounts[account_id]

    def _require_actions(self, account: FakeAccount, request: ApiRequest) -> None:
        """Refuse actions that are not among the manifest's `required_actions`."""
        for action in actions_of(request):
            if action not in account.actions or action in self.forbidden:
                raise RequestRefused(
                    403, "permission_denied", f"the account does not have {action}: name it in `required_actions`"
                )

    def _token(self, body: Mapping[str, Any]) -> dict[str, Any]:
        holder, claims = self._verified(body.get("assertion", ""), TOKENS, self._key_of)
        if claims["sub"] not in self.store.accounts:
            raise RequestRefused(401, "assertion_refused", "there is no such account")
        token = f"mrga_simulated{secrets.token_hex(16)}"
        self.tokens[token] = (holder, time.monotonic() + self.token_seconds)
        return {"access_token": token, "token_type": "Bearer", "expires_in": self.token_seconds}

    def _accounts(self, body: Mapping[str, Any]) -> dict[str, Any]:
        holder, _ = self._verified(body.get("assertion", ""), ACCOUNTS, lambda holder: holder.removeprefix("key:"))
        key = holder.removeprefix("key:")
        return {
            "accounts": [
                {
                    "service_account_id": each.id,
                    "project_id": each.project_id,
                    "key_id": each.key_id,
                    "apps": list(each.apps),
                }
                for each in self.store.accounts.values()
                if each.key == key
            ]
        }

    def _key_of(self, holder: str) -> str:
        account = self.store.accounts.get(holder)
        return "" if account is None else account.key

    def _verified(self, text: str, path: str, key_of: Callable[[str], str]) -> tuple[str, dict[str, Any]]:
        """The subject of an assertion if its signature, time and audience are valid."""
        refused = RequestRefused(401, "assertion_refused", "the assertion is invalid")
        try:
            head, payload, signature = text.split(".")
            claims = json.loads(_decoded(payload))
            key = Ed25519PublicKey.from_public_bytes(_decoded(key_of(str(claims["sub"]))))
            key.verify(_decoded(signature), f"{head}.{payload}".encode())
        except (ValueError, KeyError, binascii.Error, InvalidSignature) as error:
            raise refused from error
        now = self.store.now().timestamp()
        timely = claims["iat"] <= now + CLOCK_SKEW_SECONDS and claims["exp"] > now - CLOCK_SKEW_SECONDS
        bounded = claims["exp"] - claims["iat"] <= ASSERTION_SECONDS_MAX
        ours = claims["aud"] == f"{self.address}{path}"
        if claims["iss"] != claims["sub"] or not (timely and bounded and ours) or claims["jti"] in self.used:
            raise refused
        self.used.add(claims["jti"])
        return str(claims["sub"]), claims

    # Claims ----------------------------------------------------------------------------------------------------------

    def _claims(self, account: FakeAccount, body: Mapping[str, Any], generation: int) -> dict[str, Any]:
        check_body("claims", body)
        holder, free = str(body["holder"]), int(body.get("free", 0))
        held = {str(each["instance_id"]): int(each["fence"]) for each in body.get("held", ())}
        cursor = int(body["after"]) if body.get("after") else None

        begun = (generation, self.releases.get(holder, 0))

        def look() -> dict[str, Any] | None:
            # Claim nothing for a poll whose process was killed or has released its claims.
            if begun != (self.store.generation, self.releases.get(holder, 0)):
                return {"claims": [], "changed": [], "lost": []}
            # A poll that names released claims was sent before the release, however late it arrives.
            is_late = any((holder, *each) in self.released for each in held.items())
            return self._news(account, holder, held, cursor, 0 if is_late else free)

        wait_seconds = min(max(float(body.get("wait_seconds", 0)), 0.0), 25.0)
        news = self.store.wait(look, wait_seconds)
        with self.store.turn:
            answer: dict[str, Any] = news or {"claims": [], "changed": [], "lost": []}
            self._renew(account, holder, held)
            return {**answer, "cursor": str(self.store.sequence), "lease_seconds": self.store.lease_seconds}

    def _news(
        self, account: FakeAccount, holder: str, held: Mapping[str, int], cursor: int | None, free: int
    ) -> dict[str, Any] | None:
        ours = self._renew(account, holder, held)
        lost = [{"instance_id": each, "fence": fence} for each, fence in held.items() if each not in ours]
        changed = [each for each in ours if cursor is None or self.store.instances[each].changed > cursor]
        claims: list[dict[str, Any]] = []
        for instance in self.store.instances.values():
            if len(claims) >= free or instance.account_id != account.id:
                continue
            again = self._is_asked_again(instance, holder, held)
            if again or self._is_free(instance):
                instance.claim.fence += 0 if again else 1
                instance.claim.holder = holder
                instance.claim.until = later(self.store.now(), self.store.lease_seconds)
                claims.append({"instance_id": instance.id, "fence": instance.claim.fence})
        if not (claims or changed or lost):
            return None
        return {"claims": claims, "changed": changed, "lost": lost}

    def _is_free(self, instance: FakeInstance) -> bool:
        claim = instance.claim
        return instance.is_offered and (claim.until is None or claim.until <= self.store.now())

    def _is_asked_again(self, instance: FakeInstance, holder: str, held: Mapping[str, int]) -> bool:
        """Whether the holder did not receive the response with this claim."""
        is_ours = instance.claim.holder == holder and instance.id not in held
        return is_ours and instance.is_offered

    def _renew(self, account: FakeAccount, holder: str, held: Mapping[str, int]) -> list[str]:
        ours = []
        for instance_id, fence in held.items():
            instance = self.store.instances.get(instance_id)
            if instance is None or instance.account_id != account.id:
                continue
            claim = instance.claim
            if claim.holder == holder and claim.fence == fence and instance.status != "stopped":
                claim.until = later(self.store.now(), self.store.lease_seconds)
                ours.append(instance_id)
        return ours

    def _releases(self, account: FakeAccount, body: Mapping[str, Any]) -> dict[str, Any]:
        check_body("releases", body)
        released = []
        with self.store.changing():
            self.releases[body["holder"]] = self.releases.get(body["holder"], 0) + 1
            for each in body["held"]:
                self.released.add((str(body["holder"]), str(each["instance_id"]), int(each["fence"])))
                instance = self.store.instances.get(each["instance_id"])
                if instance is None or instance.account_id != account.id:
                    continue
                if (instance.claim.holder, instance.claim.fence) == (body["holder"], each["fence"]):
                    instance.claim.holder = instance.claim.until = None
                    instance.claim.fence += 1
                    released.append(instance.id)
        return {"released": released}

    # Requests under a fence ------------------------------------------------------------------------------------------

    def _of_instance(self, account: FakeAccount, instance_id: str, rest: list[str], request: ApiRequest) -> ApiResponse:
        is_write = request.method == "POST"
        if is_write:
            _check_write(rest[-1] if rest else "", request.body)
        else:
            check_fence(request.query)
        instance = self.store.instances.get(instance_id)
        if instance is None or instance.account_id != account.id:
            raise not_found()
        with self.store.turn:
            self._fenced(instance, request.body["fence"] if is_write else int(request.query["fence"]))
            answer = self._answer(instance, rest, request)
            if is_write:
                self.store.settle()
                self.store.turn.notify_all()
            return ApiResponse(200, answer)

    def _answer(self, instance: FakeInstance, rest: list[str], request: ApiRequest) -> dict[str, Any]:
        match request.method, rest:
            case "GET", []:
                return instance.plain(self.store.now())
            case "GET", ["tasks", task_id]:
                task = instance.tasks.get(task_id)
                if task is None:
                    raise not_found()
                return task.plain()
            case "POST", ["reports"]:
                return self._report(instance, request)
            case "POST", ["operations", operation_id, "finish"]:
                return self._finish(instance, operation_id, request)
            case "POST", ["tasks"]:
                return self._task(instance, request)
            case "POST", ["tasks:batch"]:
                return self._tasks(instance, request)
            case "POST", ["secrets"]:
                return usage_rules.store_secret(instance, request.body)
            case "POST", ["usage"]:
                return usage_rules.store_usage(instance, request.body["records"], self.store.now())
            case "POST", ["readings"]:
                return usage_rules.store_readings(instance, request.body["readings"])
        raise not_found("there is no such route")

    def _fenced(self, instance: FakeInstance, fence: int) -> None:
        if fence != instance.claim.fence or instance.claim.holder is None:
            raise RequestRefused(409, "lease_lost", "another process holds the claim")

    def _operation(self, instance: FakeInstance, operation_id: str) -> FakeOperation:
        operation = instance.operations.get(operation_id)
        if operation is None:
            raise not_found("the instance has no such operation")
        return operation

    def _report(self, instance: FakeInstance, request: ApiRequest) -> dict[str, Any]:
        body, now = request.body, self.store.now()
        operation = None if body.get("operation_id") is None else self._operation(instance, body["operation_id"])
        before = _copies(instance)
        try:
            changed = report_rules.report_operation(instance, operation, body, now)
            changed = self._report_members(instance, operation, body.get("members") or []) or changed
            changed = report_rules.report_instance(instance, body.get("instance") or {}) or changed
        except RequestRefused:
            _restore(instance, before)
            raise
        if body.get("begin") and operation is not None and operation.kind == "deploy" and instance.status == "created":
            instance.status, changed = "starting", True
        if changed:
            self.store.touch(instance)
        return {"etag": str(instance.changed)}

    def _report_members(
        self, instance: FakeInstance, operation: FakeOperation | None, reports: list[dict[str, Any]]
    ) -> bool:
        if len({each["id"] for each in reports}) != len(reports):
            raise invalid("members: must name each member only once")
        changed = False
        for each in reports:
            member = instance.members.get(each["id"])
            if member is None:
                self.store.observations.append("a member of another instance was reported")
                raise not_found("the instance has no such member")
            self.store.observations += violations.of_report(instance, member, each, self.store.nodes)
            changed = report_rules.report_member(instance, member, each, operation, self.store.now()) or changed
        return changed

    def _finish(self, instance: FakeInstance, operation_id: str, request: ApiRequest) -> dict[str, Any]:
        operation = self._operation(instance, operation_id)
        if request.body.get("evidence") is not None:
            report_rules.bounded(request.body["evidence"], "evidence")
        if request.body["outcome"] == "succeeded" and operation.is_offered:
            missing = platform_rules.what_is_missing(instance, operation)
            if missing and operation.status in ("running", "blocked"):
                self.store.observations.append(f"a false success was reported: {missing}")
            if operation.status != "cancelling":
                self.store.observations += violations.of_end(instance, operation, self.store.nodes)
        if platform_rules.finish(instance, operation, request.body, self.store.now()):
            self.store.touch(instance)
        shown = {"id": operation.id, "status": operation.status, "phase": operation.phase}
        return {**shown, "etag": str(instance.changed)}

    def _tasks(self, instance: FakeInstance, request: ApiRequest) -> dict[str, Any]:
        wanted = request.body["tasks"]
        operation_id = request.body.get("operation_id")
        operation = None if operation_id is None else self._operation(instance, operation_id)
        checked: list[FakeTask | RequestRefused] = []
        for each in wanted:
            try:
                checked.append(self._checked_task(instance, operation, each, request.correlation_id))
            except RequestRefused as refused:
                if refused.status == HTTPStatus.FORBIDDEN:
                    raise
                checked.append(refused)
        outcomes: list[dict[str, Any]] = []
        for each, outcome in zip(wanted, checked, strict=True):
            if isinstance(outcome, FakeTask):
                outcomes.append({"step": each["step"], "task": self._stored(instance, outcome), "refusal": None})
            else:
                outcomes.append({"step": each["step"], "task": None, "refusal": _plain(outcome)})
        return {"tasks": outcomes}

    def _task(self, instance: FakeInstance, request: ApiRequest) -> dict[str, Any]:
        operation_id = request.body.get("operation_id")
        if request.body["member_id"] not in instance.members:
            self.store.observations.append("a task was requested for a member of another instance")
            raise not_found("the instance has no such member")
        operation = None if operation_id is None else self._operation(instance, operation_id)
        return self._stored(instance, self._checked_task(instance, operation, request.body, request.correlation_id))

    def _checked_task(
        self, instance: FakeInstance, operation: FakeOperation | None, body: Mapping[str, Any], correlation_id: str
    ) -> FakeTask:
        """The task of this name, or a new one that may be created."""
        member = instance.members.get(body["member_id"])
        if member is None:
            self.store.observations.append("a task was requested for a member of another instance")
            raise not_found("the instance has no such member")
        earlier = task_rules.earlier_task(instance, member, operation, body["step"])
        if earlier is not None:
            return earlier
        task_rules.check_task(instance, member, operation, body)
        now = self.store.now()
        return FakeTask(
            id=self.store.new_id("tsk", instance.id),
            number=self.store.sequence,
            operation_id=None if operation is None else operation.id,
            step=body["step"],
            type=body["type"],
            member_id=member.id,
            arguments=dict(body.get("arguments") or {}),
            correlation_id=correlation_id,
            created_at=now,
            expires_at=later(now, float(body.get("lifetime_seconds", 3_600))),
        )

    def _stored(self, instance: FakeInstance, task: FakeTask) -> dict[str, Any]:
        if task.id not in instance.tasks:
            self.store.observations += violations.of_task(instance, task)
            instance.tasks[task.id] = task
            self.store.touch(instance)
        return task.plain()


def _check_write(route: str, body: Mapping[str, Any]) -> None:
    """Refuse a malformed body; like the server, before the fence is compared."""
    check_body(route, body)
    if route == "secrets":
        usage_rules.check_secret(body)
    elif route == "tasks:batch" and len({each["step"] for each in body["tasks"]}) != len(body["tasks"]):
        raise invalid("tasks: a step must be unique within the request")


def _plain(refused: RequestRefused) -> dict[str, Any]:
    return {"code": refused.code, "detail": refused.detail, "retryable": refused.retryable, "details": {}}


def actions_of(request: ApiRequest) -> list[str]:
    """The actions that a request needs."""
    route = request.path.rpartition("/")[2]
    if route in ("reports", "finish"):
        return ["runtime.report"]
    if route in ("tasks", "tasks:batch") or "/tasks/" in request.path:
        several = request.body.get("tasks")
        wanted = [request.body, *(several if isinstance(several, list) else ())]
        grants = any(isinstance(each, dict) and each.get("grants") for each in wanted)
        return ["task.create", *(["secret.grant"] if grants else [])]
    return [
        {"secrets": "secret.create", "usage": "usage.report", "readings": "usage.report"}.get(route, "runtime.claim")
    ]


def _copies(instance: FakeInstance) -> dict[str, Any]:
    kept = (
        "members",
        "operations",
        "status",
        "health",
        "health_detail",
        "adapter_detail",
        "endpoints",
        "topology_mode",
    )
    return deepcopy({name: getattr(instance, name) for name in kept})


def _restore(instance: FakeInstance, before: Mapping[str, Any]) -> None:
    """Undo what a refused report had already changed: a report is applied completely or not at all."""
    for name, value in before.items():
        setattr(instance, name, value)


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
