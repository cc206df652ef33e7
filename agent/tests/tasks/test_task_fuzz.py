"""Whatever a broken or hostile platform signs or answers: the agent refuses it or does it, and never crashes."""

import asyncio
import json
import time
from itertools import chain
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.tests.support.fake_platform import ALLOCATION, CREATE, FakePlatform
from mooring_agent.control_plane.keys import make_keys
from mooring_agent.control_plane.messages import ClaimResponse, Envelope, ReportResponse, encode
from mooring_agent.control_plane.platform_client import Rejected, Unreachable, read_response
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.tasks.arguments import ARGUMENTS
from mooring_agent.tasks.executor import Executor
from mooring_agent.tasks.handlers import HANDLERS
from mooring_agent.tasks.journal import Journal
from mooring_agent.tasks.log_read import LogReadHandler
from mooring_agent.tasks.probes import PROBES
from mooring_agent.tasks.verifier import TaskRefused
from tests.support.fuzzing import mutated, named, thorough
from tools.soak import played

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
    | st.sampled_from(["", "/", "/etc/../x", "root", "a" * 300, "a\n", "0", "\ud800", ALLOCATION, 2**63, 2**64, 1e300])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({name for each in ARGUMENTS.values() for name in each.__struct_fields__})
ARGUMENT_SETS = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), VALUES, max_size=5)
EXAMPLES: dict[str, dict[str, Any]] = {
    "sandbox.create": CREATE,
    "process.run": {"argv": ["true"], "environment": {"A": "b"}},
    "files.write": {"files": [{"path": "/a", "content": "a"}]},
    "service.start": {"name": "web", "argv": ["web"]},
    "log.read": {"name": "web", "kind": "service"},
    "probe.exec": {"argv": ["true"]},
}
NESTED = b'{"v":1,"arguments":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}"
CHANGED = st.dictionaries(
    st.sampled_from(["v", "task_id", "type", "fence", "owner", "allocation_id", "issued_at", "expires_at", "secrets"]),
    VALUES,
    max_size=2,
)


async def _given(payload: dict[str, Any] | bytes) -> None:
    """Give an agent one signed payload; it refuses it, or ends it with a result."""
    platform, journal = FakePlatform(), Journal(":memory:")
    handlers = {**HANDLERS, **PROBES, **LogReadHandler().handlers()}
    executor = Executor(SimulatedHost(), journal, make_keys(), time.time, lambda: None, handlers=handlers)
    try:
        task = platform.verifier.verify(platform.sign(payload), time.time())
        executor.accept(task)
    except TaskRefused:
        return
    finally:
        try:
            async with asyncio.timeout(30):
                await executor.wait_until_idle()
        finally:
            await executor.stop()
            unfinished = journal.unfinished()
            journal.close()
    assert not unfinished


@settings(thorough, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(sorted(ARGUMENTS)), ARGUMENT_SETS, CHANGED)
def test_any_arguments_and_fields_are_refused_or_done(
    type: str, arguments: dict[str, Any], changed: dict[str, Any]
) -> None:
    played()
    whole = FakePlatform().payload(type, {**EXAMPLES.get(type, {}), **arguments}) | changed
    asyncio.run(_given(json.dumps(whole).encode()))


def test_any_signed_bytes_are_refused_or_done() -> None:
    corpus = [json.dumps(FakePlatform().payload(type, each)).encode() for type, each in EXAMPLES.items()]
    for data in chain((NESTED, b"", b"[" * 100_000, b"\xff"), mutated(corpus)):
        with named(data[:500]):
            asyncio.run(_given(data))


@thorough
@given(st.text(max_size=50), st.text(max_size=50), st.text(max_size=100))
def test_any_envelope_is_refused(payload: str, key_id: str, signature: str) -> None:
    played()
    platform = FakePlatform()
    for key in (key_id, platform.key_id):
        with pytest.raises(TaskRefused):
            platform.verifier.verify(Envelope(payload, key, signature), time.time())


def test_any_answer_of_the_platform_is_read_or_refused() -> None:
    envelope = {"payload": encode(b"{}"), "key_id": "k", "signature": "s"}
    lease = {"task_id": "t", "fence": 1}
    corpus = [
        json.dumps({"tasks": [envelope], "cancel": [lease], "lost": [lease], "lease_seconds": 90}).encode(),
        json.dumps({"results": [{"accepted": True}, {"accepted": False, "code": "conflict", "detail": "x"}]}).encode(),
        json.dumps({"code": "assertion_refused", "detail": "x"}).encode(),
    ]
    for data in chain((NESTED, b"[" * 100_000, b""), mutated(corpus)):
        for status in (200, 400, 401, 500):
            for kind in (ClaimResponse, ReportResponse):
                with named(data[:500]):
                    try:
                        read_response(httpx.Response(status, content=data), kind)
                    except (Rejected, Unreachable):
                        continue
