"""A secret that was delivered to an allocation is hidden in every text that leaves the node, also by a later agent."""

import base64
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tests.support.fake_platform import CREATE, FakePlatform, seal
from mooring_agent.control_plane.keys import make_keys
from mooring_agent.control_plane.messages import TaskResult
from mooring_agent.hosts.contract import HostFailure, LogPart, LogRequest, Owner, ProcessSpec, ServiceState
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.tasks.executor import Executor
from mooring_agent.tasks.handlers import HANDLERS
from mooring_agent.tasks.journal import Journal
from mooring_agent.tasks.log_read import LogReadHandler, masked_part
from mooring_agent.tasks.secret_masks import SecretMask

pytestmark = pytest.mark.anyio

SECRET = b"c1uster-key-0123456789"
LOG = b"starts\nkey is " + SECRET + b" end\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class TalkingHost(SimulatedHost):
    """Whatever runs here prints the secret that it was given; `boom` fails with it."""

    async def run(self, owner: Owner, key: str, process: ProcessSpec, timeout_seconds: float) -> int:
        if process.argv[0] == "boom":
            raise HostFailure("host_error", f"cannot run with {SECRET.decode()}")
        return await super().run(owner, key, process, timeout_seconds)

    async def read_log(self, owner: Owner, key: str, offset: int) -> AsyncIterator[bytes]:
        yield LOG[offset:]

    async def read_log_part(self, owner: Owner, key: str, request: LogRequest) -> LogPart | None:
        begin = min(request.offset or 0, len(LOG))
        content = LOG[begin : begin + request.max_bytes]
        return LogPart(content, begin, begin + len(content), len(LOG))

    async def inspect_service(self, owner: Owner, name: str) -> ServiceState:
        return ServiceState(name, "running", 1, last_lines=tuple(LOG.decode().splitlines()))


class MaskMachine:
    """A machine whose agent can be restarted."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.platform, self.keys = directory, FakePlatform(), make_keys()
        self.host = TalkingHost()
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.directory / "journal.sqlite")
        handlers = {**HANDLERS, **LogReadHandler().handlers()}
        self.executor = Executor(self.host, self.journal, self.keys, time.time, lambda: None, handlers=handlers)

    async def do(self, type: str, arguments: dict[str, Any], *, with_secret: bool = False) -> TaskResult:
        payload = self.platform.payload(type, arguments)
        if with_secret:
            payload["secrets"] = [seal(SECRET, self.keys.sealing_public, payload["task_id"], "app_secret", "key")]
        self.executor.accept(self.platform.verifier.verify(self.platform.sign(payload), time.time()))
        await self.executor.wait_until_idle()
        entry = self.journal.find(payload["task_id"])
        assert entry is not None
        assert entry.result is not None
        return entry.result


async def test_a_services_secret_is_hidden_in_every_text_also_after_a_restart(tmp_path: Path) -> None:
    machine = MaskMachine(tmp_path)
    await machine.do("sandbox.create", CREATE)
    start = {"name": "web", "argv": ["web"], "environment_secrets": {"KEY": "key"}}
    assert (await machine.do("service.start", start, with_secret=True)).outcome == "succeeded"
    for _ in range(2):
        inspected = await machine.do("service.inspect", {"name": "web"})
        assert inspected.result["last_lines"] == ["starts", "key is [secret]************** end"]
        ran = await machine.do("process.run", {"argv": ["true"]})
        assert ran.last_lines == ("starts", "key is [secret]************** end")
        failed = await machine.do("process.run", {"argv": ["boom"]})
        assert failed.failure is not None
        assert SECRET.decode() not in failed.failure.detail
        machine.journal.close()
        assert SECRET not in (tmp_path / "journal.sqlite").read_bytes()
        machine.start()
    await machine.do("sandbox.destroy", {})
    assert machine.journal.delivered_secrets() == []


async def test_no_offset_of_a_log_read_shows_a_part_of_the_secret(tmp_path: Path) -> None:
    machine = MaskMachine(tmp_path)
    await machine.do("sandbox.create", CREATE)
    await machine.do("files.write", {"files": [{"path": "/key", "secret": "key"}]}, with_secret=True)
    for offset in range(len(LOG)):
        read = await machine.do("log.read", {"name": "web", "kind": "service", "offset": offset, "max_bytes": 1024})
        content = base64.b64decode(read.result["content_base64"])
        assert len(content) == len(LOG) - offset
        hidden = LOG.replace(SECRET, b"[secret]" + b"*" * (len(SECRET) - 8))
        assert content == hidden[offset:]


@given(st.binary(max_size=200), st.lists(st.binary(min_size=4, max_size=20), max_size=4), st.integers(0, 100))
def test_a_mask_keeps_every_length_and_leaves_no_secret(data: bytes, secrets: list[bytes], at: int) -> None:
    text = data[:at] + b"".join(secrets) + data[at:]
    mask = SecretMask.of(secrets)
    hidden = mask.hide(text)
    assert len(hidden) == len(text)
    assert 0 <= mask.unfinished(text) <= mask.margin
    if len(secrets) == 1 and len(secrets[0].strip()) >= 4 and not set(secrets[0]) & set(b"[secret]*"):
        assert secrets[0] not in hidden


def test_several_lines_are_hidden_one_by_one_and_a_part_where_it_fits() -> None:
    key = b"-----BEGIN KEY-----\n" + b"A" * 64 + b"\n" + b"B" * 64 + b"\n-----END KEY-----\n"
    mask = SecretMask.of([key])
    assert b"B" not in mask.hide(b"x\n" + b"B" * 64 + b"\ny")
    wide = LogPart(b"say " + SECRET, 10, 40, 40)
    part = LogPart(SECRET[5:], 30, 40, 40)  # offsets of a container's log count more than the text
    assert masked_part(SecretMask.of([SECRET]), part, wide).content == b"et]" + b"*" * (len(SECRET) - 8)
