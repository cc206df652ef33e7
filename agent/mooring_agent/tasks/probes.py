"""Probes: asking what runs in a sandbox whether it serves, from inside that sandbox's network."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from mooring_agent.hosts.contract import Host, HostFailure, ProcessSpec
from mooring_agent.tasks import arguments as taken
from mooring_agent.tasks.handlers import Doing, Family, Fields, output_of

HEAD_MAX: Final = 65_536


async def probe_tcp(host: Host, doing: Doing, wanted: taken.ProbeTcp) -> Fields:
    """`probe.tcp`."""

    async def once(attempt: int) -> str:
        stream = await host.dial(doing.task.allocation_id, wanted.port)
        await stream.close()
        return "connected"

    return await _tried(wanted, once)


async def probe_http(host: Host, doing: Doing, wanted: taken.ProbeHttp) -> Fields:
    """`probe.http`."""

    async def once(attempt: int) -> str:
        stream = await host.dial(doing.task.allocation_id, wanted.port)
        try:
            asked = f"GET {wanted.path} HTTP/1.1\r\nHost: localhost:{wanted.port}\r\nConnection: close\r\n\r\n"
            await stream.send(asked.encode("ascii"))
            head = b""
            while b"\r\n" not in head and len(head) < HEAD_MAX:
                part = await stream.receive()
                if not part:
                    break
                head += part
        finally:
            await stream.close()
        words = head.partition(b"\r\n")[0].split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
            raise HostFailure("probe_failed", f"port {wanted.port} does not speak HTTP")
        if int(words[1]) not in wanted.status:
            raise HostFailure("probe_failed", f"{wanted.path} answered {int(words[1])}")
        return words[1].decode()

    return await _tried(wanted, once)


async def probe_exec(host: Host, doing: Doing, wanted: taken.ProbeExec) -> Fields:
    """`probe.exec`: a program that ends with 0."""

    output: Fields = {}

    async def once(attempt: int) -> str:
        key = f"{doing.task.task_id}.{doing.task.fence}.{attempt}"
        output.clear()
        process = ProcessSpec(wanted.argv, wanted.environment, wanted.user, output_bytes=wanted.output_bytes)
        code = await host.run(doing.owner, key, process, wanted.timeout_seconds)
        output.update(await output_of(host, doing, key, wanted.output_bytes))
        if code != 0:
            raise HostFailure("probe_failed", f"{wanted.argv[0]} ended with {code}", code, output)
        return "0"

    return await _tried(wanted, once) | output


async def _tried(wanted: taken.Probe, once: Callable[[int], Awaitable[str]]) -> Fields:
    last = HostFailure("probe_failed", "it was not tried")
    for attempt in range(wanted.attempts):
        if attempt:
            await asyncio.sleep(wanted.interval_seconds)
        began = time.monotonic()
        try:
            async with asyncio.timeout(wanted.timeout_seconds):
                observed = await once(attempt)
        except TimeoutError:
            last = HostFailure("probe_failed", f"no answer within {wanted.timeout_seconds:g} s")
        except HostFailure as failure:
            last = HostFailure("probe_failed", failure.detail, failure.exit_code, failure.result)
        else:
            took = round((time.monotonic() - began) * 1_000)
            return {"observed": observed, "attempts": attempt + 1, "latency_milliseconds": took}
    raise HostFailure("probe_failed", f"after {wanted.attempts} attempts: {last.detail}", last.exit_code, last.result)


PROBES: Final[dict[str, Family]] = {
    "probe.tcp": Family(probe_tcp),
    "probe.http": Family(probe_http),
    "probe.exec": Family(probe_exec),
}
