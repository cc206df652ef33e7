"""Adapters that break one promise each, to test that the suite notices; they use the contract without the kit.

`python broken_adapter.py <how>`; `how` names the defect. `nothing` is a minimal adapter without a defect.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from mooring_adapter.platform_client import read_key
from mooring_sdk import Call, Client, MooringError, Operation, ServiceAccountCredentials

HOW = sys.argv[1]
URL = os.environ["MOORING_URL"]
KEY = read_key(Path(os.environ["MOORING_KEY_FILE"]).read_bytes())
INSTANCES = "/api/v1/runtime/instances/{id}"
START = {"type": "service.start", "arguments": {"name": "broken", "argv": ["true"]}}
PROBE = {"type": "probe.tcp", "arguments": {"port": 80}}


def steps_of(step: str) -> list[str]:
    """The tasks of one member, in their order."""
    again = [f"{step}/again"] if HOW == "starts_twice" else []
    return [step, *again, f"{step}/probe"]


class BrokenAdapter:
    """One account, one instance at a time."""

    def __init__(self) -> None:
        audience = f"{URL}/api/v1/runtime/accounts"
        asked = ServiceAccountCredentials(f"key:{KEY.public}", "adapter", KEY.private, audience=audience)
        with Client(URL) as client:
            accounts = Operation("accounts", "POST", "/api/v1/runtime/accounts", is_public=True)
            found = client.call(Call(accounts, body={"assertion": asked.assertion(URL, time.time())}), dict[str, Any])
        first = found["accounts"][0]
        credentials = ServiceAccountCredentials(first["service_account_id"], first["key_id"], KEY.private)
        self.client = Client(URL, credentials=credentials)
        self.held: dict[str, int] = {}
        self.cursor: str | None = None

    def post(self, path: str, body: dict[str, Any], **names: str) -> dict[str, Any]:
        return self.client.call(Call(Operation(path, "POST", path), names, body=body), dict[str, Any])

    def run(self) -> None:
        while True:
            body: dict[str, Any] = {
                "holder": f"broken-{os.getpid()}",
                "free": 10,
                "wait_seconds": 5,
                "held": [{"instance_id": each, "fence": fence} for each, fence in self.held.items()],
            }
            if self.cursor is not None:
                body["after"] = self.cursor
            news = self.post("/api/v1/runtime/claims", body)
            self.cursor = news["cursor"]
            for each in news["claims"]:
                self.held.setdefault(each["instance_id"], each["fence"])
            if HOW != "ignores_fences":
                for each in news["lost"]:
                    self.held.pop(each["instance_id"], None)
            for instance_id in list(self.held):
                try:
                    while self.step(instance_id, self.held[instance_id]):
                        pass
                except MooringError as error:
                    if HOW != "ignores_fences" and error.code in ("lease_lost", "not_found"):
                        self.held.pop(instance_id, None)

    def step(self, instance_id: str, fence: int) -> bool:
        """One round; returns whether something was done."""
        read = Call(Operation("read", "GET", INSTANCES), {"id": instance_id}, {"fence": fence})
        view = self.client.call(read, dict[str, Any])
        done = False
        for operation in view["operations"]:
            if not operation["begun"]:
                self.report(instance_id, fence, {"operation_id": operation["id"], "begin": True})
            done = self.advance(instance_id, fence, view, operation) or done
        return done

    def report(self, instance_id: str, fence: int, report: dict[str, Any]) -> None:
        self.post(INSTANCES + "/reports", {"fence": fence, **report}, id=instance_id)

    def advance(self, instance_id: str, fence: int, view: dict[str, Any], operation: dict[str, Any]) -> bool:
        members = [each for each in view["members"] if each["id"] in operation["member_ids"]]
        tasks = {each["step"]: each for each in view["tasks"] if each["operation_id"] == operation["id"]}
        for member in members:
            moved = self.move(instance_id, fence, operation=operation, member=member, tasks=tasks)
            if moved is not None:
                return moved
        end = {"fence": fence, "outcome": "succeeded"}
        self.post(INSTANCES + "/operations/{operation}/finish", end, id=instance_id, operation=operation["id"])
        return True

    def move(
        self,
        instance_id: str,
        fence: int,
        *,
        operation: dict[str, Any],
        member: dict[str, Any],
        tasks: dict[str, Any],
    ) -> bool | None:
        """Advance one member; None if it is in its target state, False if it has to be waited for."""
        report: dict[str, Any] = {"id": member["id"]}
        if operation["kind"] in ("deploy", "add") and member["status"] in ("requested", "joining"):
            step = f"start/{member['id']}"
            if member["status"] == "requested":
                report["status"] = "joining"
            elif missing := next((each for each in steps_of(step) if each not in tasks), None):
                body = {
                    "fence": fence,
                    "operation_id": operation["id"],
                    "step": missing,
                    "member_id": member["id"],
                    **(PROBE if missing.endswith("/probe") else START),
                }
                self.post(INSTANCES + "/tasks", body, id=instance_id)
                return True
            elif any(tasks[each]["status"] == "queued" for each in steps_of(step)):
                return False
            else:
                report["status"] = "ready"
        elif operation["kind"] == "drain" and member["status"] == "draining":
            if HOW != "drains_too_early":
                return False
            report["status"] = "drained"
        else:
            return None
        self.report(instance_id, fence, {"operation_id": operation["id"], "members": [report]})
        return True


if __name__ == "__main__":
    BrokenAdapter().run()
