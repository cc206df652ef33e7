"""The simulated platform's side of the adapter contract: one method for each route, over the fake store.

Every route of an instance checks the fence first. Bodies are only read as far as the rules need them.
"""

import base64
import binascii
import json
import secrets
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from mooring_adapter.conformance import platform_rules, violations
from mooring_adapter.conformance.fake_records import FakeAccount, FakeInstance, FakeOperation, FakeTask, later
from mooring_adapter.conformance.fake_store import FakeStore
from mooring_adapter.conformance.platform_rules import RequestRefused, invalid, not_found
from mooring_adapter.conformance.task_arguments import check_arguments
from mooring_adapter.platform_client import TASKS_MAX

TOKENS: Final = "/api/v1/oauth/token"
ACCOUNTS: Final = "/api/v1/runtime/accounts"
CLOCK_SKEW_SECONDS: Final = 60.0
ASSERTION_SECONDS_MAX: Final = 300.0
STEP_LENGTH_MAX: Final = 128
STEPS_MAX: Final = 200
ARGUMENTS_BYTES_MAX: Final = 262_144
SECRET_PURPOSES: Final = ("app_access", "member_secret", "cluster_key")


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
        """Refuse what the account was not given: it has the manifest's `required_actions`, and no others."""
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
        holder, free = str(body.get("holder", "")), int(body.get("free", 0))
        if not 1 <= len(holder) <= 64 or not 0 <= free <= 100:
            raise invalid("holder must have 1 to 64 characters, free must be between 0 and 100")
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
        return instance.claim.holder == holder and instance.id not in held

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
        with self.store.changing():
            self.releases[body["holder"]] = self.releases.get(body["holder"], 0) + 1
            for each in body.get("held", ()):
                self.released.add((str(body["holder"]), str(each["instance_id"]), int(each["fence"])))
                instance = self.store.instances.get(each["instance_id"])
                if instance is not None and instance.claim.holder == body["holder"]:
                    instance.claim.holder = instance.claim.until = None
                    instance.claim.fence += 1
        return {}

    # Requests under a fence ------------------------------------------------------------------------------------------

    def _of_instance(self, account: FakeAccount, instance_id: str, rest: list[str], request: ApiRequest) -> ApiResponse:
        instance = self.store.instances.get(instance_id)
        if instance is None or instance.account_id != account.id:
            raise not_found()
        if request.method == "GET" and not rest:
            with self.store.turn:
                self._fenced(instance, request.query.get("fence"))
                return ApiResponse(200, instance.plain(self.store.now()))
        with self.store.turn:
            self._fenced(
                instance, request.body.get("fence") if request.method == "POST" else request.query.get("fence")
            )
            match request.method, rest:
                case "POST", ["reports"]:
                    answer = self._report(instance, request)
                case "POST", ["operations", operation_id, "finish"]:
                    answer = self._finish(instance, operation_id, request)
                case "POST", ["tasks"]:
                    answer = self._task(instance, request)
                case "POST", ["tasks:batch"]:
                    answer = self._tasks(instance, request)
                case "GET", ["tasks", task_id]:
                    task = instance.tasks.get(task_id)
                    if task is None:
                        raise not_found()
                    return ApiResponse(200, task.plain())
                case "POST", ["secrets"]:
                    answer = self._secret(instance, request.body)
                case "POST", ["usage"]:
                    answer = self._usage(instance, request.body)
                case _:
                    raise not_found("there is no such route")
            self.store.settle()
            self.store.turn.notify_all()
            return ApiResponse(200, answer)

    def _fenced(self, instance: FakeInstance, fence: Any) -> None:
        if str(fence) != str(instance.claim.fence) or instance.claim.holder is None:
            raise RequestRefused(409, "lease_lost", "another process holds the claim")

    def _operation(self, instance: FakeInstance, operation_id: Any) -> FakeOperation:
        operation = instance.operations.get(str(operation_id))
        if operation is None:
            raise not_found("the instance has no such operation")
        return operation

    def _report(self, instance: FakeInstance, request: ApiRequest) -> dict[str, Any]:
        body = request.body
        ids = [each.get("id") for each in body.get("members", ())]
        if any(each not in instance.members for each in ids):
            self.store.observations.append("a member of another instance was reported")
            raise not_found("the instance has no such member")
        before = _copies(instance)
        try:
            if body.get("operation_id") is not None:
                self._progress(instance, self._operation(instance, body["operation_id"]), body)
            for each in body.get("members", ()):
                self._apply_member(instance, each)
            self._apply_instance(instance, body.get("instance") or {})
        except RequestRefused:
            _restore(instance, before)
            raise
        self.store.touch(instance)
        return {"etag": str(instance.changed)}

    def _progress(self, instance: FakeInstance, operation: FakeOperation, body: Mapping[str, Any]) -> None:
        if operation.is_over:
            raise RequestRefused(409, "illegal_transition", f"the operation is {operation.status}")
        if body.get("begin"):
            platform_rules.begin(instance, operation, self.store.now())
        if "blocked" in body:
            platform_rules.block(operation, body["blocked"])
        for step in body.get("steps", ()):
            if step.get("status") not in ("pending", "running", "done", "failed", "skipped"):
                raise invalid("a step must be pending, running, done, failed or skipped")
            operation.steps[step["name"]] = {key: step.get(key) for key in ("name", "status", "detail")}
        if len(operation.steps) > STEPS_MAX:
            raise invalid(f"an operation can have at most {STEPS_MAX} steps")

    def _apply_member(self, instance: FakeInstance, report: Mapping[str, Any]) -> None:
        member = instance.members[report["id"]]
        self.store.observations += violations.of_report(instance, member, report, self.store.nodes)
        platform_rules.report_member(instance, member, report)

    def _apply_instance(self, instance: FakeInstance, report: Mapping[str, Any]) -> None:
        instance.health = report.get("health", instance.health)
        instance.adapter_detail = dict(report.get("detail", instance.adapter_detail))
        for each in report.get("endpoints", ()):
            if each.get("member_id") not in instance.members:
                raise not_found("an endpoint must be at a member of the instance")
        if "endpoints" in report:
            instance.endpoints = list(report["endpoints"])

    def _finish(self, instance: FakeInstance, operation_id: str, request: ApiRequest) -> dict[str, Any]:
        operation = self._operation(instance, operation_id)
        if request.body.get("outcome") == "succeeded" and operation.is_offered:
            missing = platform_rules.what_is_missing(instance, operation)
            if missing and operation.status in ("running", "blocked"):
                self.store.observations.append(f"a false success was reported: {missing}")
            if operation.status != "cancelling":
                self.store.observations += violations.of_end(instance, operation, self.store.nodes)
        platform_rules.finish(instance, operation, request.body, self.store.now())
        self.store.touch(instance)
        return {"id": operation.id, "status": operation.status, "phase": operation.phase}

    def _tasks(self, instance: FakeInstance, request: ApiRequest) -> dict[str, Any]:
        wanted = request.body.get("tasks", [])
        if not 1 <= len(wanted) <= TASKS_MAX:
            raise invalid(f"one request creates between 1 and {TASKS_MAX} tasks")
        outcomes = []
        for each in wanted:
            one = {**each, "operation_id": request.body.get("operation_id")}
            made, refusal = None, None
            try:
                made = self._task(instance, replace(request, body=one))
            except RequestRefused as refused:
                if refused.status == HTTPStatus.FORBIDDEN:
                    raise
                refusal = {
                    "code": refused.code,
                    "detail": refused.detail,
                    "retryable": refused.retryable,
                    "details": {},
                }
            outcomes.append({"step": each.get("step"), "task": made, "refusal": refusal})
        return {"tasks": outcomes}

    def _task(self, instance: FakeInstance, request: ApiRequest) -> dict[str, Any]:
        body = request.body
        step, kind, member_id = str(body.get("step", "")), str(body.get("type", "")), str(body.get("member_id", ""))
        if body.get("operation_id") is None and kind not in platform_rules.LOOKING:
            raise invalid("without an operation a task may only observe")
        operation = None if body.get("operation_id") is None else self._operation(instance, body["operation_id"])
        name = None if operation is None else operation.id
        for task in instance.tasks.values():
            if (task.operation_id, task.step) == (name, step):
                return task.plain()
        if member_id not in instance.members:
            self.store.observations.append("a task was requested for a member of another instance")
            raise not_found("the instance has no such member")
        if kind in platform_rules.PLATFORM_ONLY:
            raise RequestRefused(403, "permission_denied", f"{kind} is reserved for the platform")
        if kind not in platform_rules.TASK_TYPES or not 1 <= len(step) <= STEP_LENGTH_MAX:
            raise invalid(f"there is no task type {kind!r}, or the step has no name")
        if len(json.dumps(body.get("arguments", {}))) > ARGUMENTS_BYTES_MAX:
            raise invalid("the arguments are too large")
        check_arguments(kind, body.get("arguments", {}))
        if operation is not None and (operation.is_over or operation.phase == "platform"):
            raise platform_rules.conflict("the operation is over, or in the platform's phase")
        if instance.members[member_id].status in ("removing", "removed"):
            raise platform_rules.conflict("the member is being removed")
        self._check_artifacts(instance, operation, body.get("arguments", {}))
        number = self.store.sequence = self.store.sequence + 1
        made = FakeTask(
            f"tsk_simulated{number}",
            number,
            name,
            step,
            kind,
            member_id,
            dict(body.get("arguments", {})),
            request.correlation_id,
            self.store.now(),
        )
        self.store.observations += violations.of_task(instance, made)
        instance.tasks[made.id] = made
        self.store.touch(instance)
        return made.plain()

    def _check_artifacts(
        self, instance: FakeInstance, operation: FakeOperation | None, arguments: Mapping[str, Any]
    ) -> None:
        pins = [instance.pin, *([operation.target_pin] if operation is not None and operation.target_pin else [])]
        roles = {role for pin in pins for role in pin["artifacts"]}
        digests = {digest for pin in pins for digest in pin["artifacts"].values()}
        image = arguments.get("image", {})
        for each in (arguments, image, *arguments.get("files", ())):
            if each.get("artifact") is not None and each["artifact"] not in roles:
                raise RequestRefused(409, "artifact_unverified", "the version has no artifact of this role")
            if each.get("digest") is not None and each["digest"] not in digests:
                raise RequestRefused(409, "artifact_unverified", "the digest is not in the instance's pin")

    def _secret(self, instance: FakeInstance, body: Mapping[str, Any]) -> dict[str, Any]:
        name, purpose = str(body.get("name", "")), str(body.get("purpose", ""))
        if purpose not in SECRET_PURPOSES or not name:
            raise invalid(f"a secret needs a name and one of the purposes {', '.join(SECRET_PURPOSES)}")
        created = name not in instance.secrets
        instance.secrets.setdefault(name, purpose)
        return {"name": name, "purpose": instance.secrets[name], "created": created}

    def _usage(self, instance: FakeInstance, body: Mapping[str, Any]) -> dict[str, Any]:
        units = {each["unit"] for each in instance.manifest.get("usage_units", ())}
        records = body.get("records", ())
        if len(records) > 500 or any(each.get("unit") not in units for each in records):
            raise invalid("at most 500 records, each with a unit of the manifest")
        for each in records:
            instance.usage.setdefault(each["record_id"], dict(each))
        return {"accepted": len(records)}


def actions_of(request: ApiRequest) -> list[str]:
    """The actions that a request needs."""
    route = request.path.rpartition("/")[2]
    if route in ("reports", "finish"):
        return ["runtime.report"]
    if route in ("tasks", "tasks:batch") or "/tasks/" in request.path:
        wanted = [request.body, *request.body.get("tasks", ())]
        return ["task.create", *(["secret.grant"] if any(each.get("grants") for each in wanted) else [])]
    return [{"secrets": "secret.create", "usage": "usage.report"}.get(route, "runtime.claim")]


def _copies(instance: FakeInstance) -> dict[str, Any]:
    return deepcopy({"members": instance.members, "operations": instance.operations, "status": instance.status})


def _restore(instance: FakeInstance, before: Mapping[str, Any]) -> None:
    """Undo what a refused report had already changed: a report is applied completely or not at all."""
    for name, value in before.items():
        setattr(instance, name, value)


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
