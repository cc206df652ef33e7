"""Whether a task is trusted: a pure function of bytes, keys and time.

The signature is checked over the bytes as received, before they are parsed. A task that is not trusted is refused with
a reason from a closed list, and nothing is done.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from mooring_agent.control_plane.keys import is_valid_signature
from mooring_agent.control_plane.messages import ENVELOPE_MAX, Envelope, Task, decode

TASK_CONTEXT: Final = b"mooring-task-v1\n"
CLOCK_SKEW_SECONDS: Final = 60.0
_TASK: Final = msgspec.json.Decoder(Task)


class TaskRefused(Exception):
    """A task that is refused; `reason` is one of the contract's."""

    def __init__(self, reason: str, detail: str, task_id: str | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.task_id = task_id


@dataclass(frozen=True, slots=True)
class TaskVerifier:
    """This node's identity and the platform keys that it trusts."""

    node_id: str
    audience: str
    pinned: Mapping[str, bytes]

    def verify(self, envelope: Envelope, now: float) -> Task:
        """The task in an envelope; raises `TaskRefused` if it is not trusted."""
        payload = self.payload(envelope)
        try:
            task = _TASK.decode(payload)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:  # not UTF-8, or nested without end
            raise TaskRefused("bad_arguments", f"the payload is not a task: {error}") from error
        if task.v != 1:
            raise TaskRefused("unknown_type", f"the task has version {task.v}; this agent supports 1", task.task_id)
        self.check_recipient(task.node_id, task.audience, task.task_id)
        if task.expires_at <= now - CLOCK_SKEW_SECONDS:
            raise TaskRefused("expired", f"the task expired {now - task.expires_at:.0f} s ago", task.task_id)
        if task.issued_at > now + CLOCK_SKEW_SECONDS:
            raise TaskRefused("expired", "the task was issued in the future: check this machine's clock", task.task_id)
        if task.owner.partition("/")[0] != task.allocation_id:
            raise TaskRefused("bad_arguments", "the owner is outside the allocation", task.task_id)
        return task

    def payload(self, envelope: Envelope, context: bytes = TASK_CONTEXT) -> bytes:
        """The signed bytes of an envelope, after verifying that the platform signed them."""
        if len(envelope.payload) > ENVELOPE_MAX:
            raise TaskRefused("bad_arguments", f"the payload is longer than {ENVELOPE_MAX} characters")
        public = self.pinned.get(envelope.key_id)
        if public is None:
            raise TaskRefused("bad_signature", f"the key {envelope.key_id[:80]!r} is not pinned")
        try:
            payload, signature = decode(envelope.payload), decode(envelope.signature)
        except ValueError as error:
            raise TaskRefused("bad_signature", "payload or signature is not base64url") from error
        if not is_valid_signature(public, signature, context + payload):
            raise TaskRefused("bad_signature", "the platform's key did not sign this payload")
        return payload

    def check_recipient(self, node_id: str, audience: str, task_id: str | None) -> None:
        """Refuse what is signed for another node or platform."""
        if node_id != self.node_id:
            raise TaskRefused("wrong_node", f"the task is for {node_id}", task_id)
        if audience != self.audience:
            raise TaskRefused("wrong_audience", f"the task is for {audience!r}", task_id)
