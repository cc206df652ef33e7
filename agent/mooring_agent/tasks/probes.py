"""Probes: whether a program in a sandbox serves, checked from inside the sandbox's network."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from mooring_agent.hosts.contract import Host, HostFailure, ProcessSpec
from mooring_agent.tasks import arguments as task_arguments
from mooring_agent.tasks.handlers import ResultFields, TaskContext, TaskHandler, output_of

HEAD_MAX: Final = 65_536
METRICS_BYTES_MAX: Final = 4 * 1024 * 1024
SAMPLES_MAX: Final = 256
SAMPLE_LENGTH_MAX: Final = 500


async def probe_tcp(host: Host, context: TaskContext, arguments: task_arguments.ProbeTcp) -> ResultFields:

    async def probe_once(attempt: int) -> str:
        stream = await host.dial(context.task.allocation_id, arguments.port)
        await stream.close()
        return "connected"

    return await _probe(arguments, probe_once)


async def probe_http(host: Host, context: TaskContext, arguments: task_arguments.ProbeHttp) -> ResultFields:
    """Succeeds if a path responds with a wanted status; may return the samples of some Prometheus metrics."""

    found: ResultFields = {}

    async def probe_once(attempt: int) -> str:
        stream = await host.dial(context.task.allocation_id, arguments.port)
        # A response to HTTP/1.0 is never chunked, so what follows its head is the text.
        version = "1.0" if arguments.metrics else "1.1"
        request = (
            f"GET {arguments.path} HTTP/{version}\r\nHost: localhost:{arguments.port}\r\nConnection: close\r\n\r\n"
        )
        try:
            await stream.send(request.encode("ascii"))
            head = bytearray()
            while len(head) < (METRICS_BYTES_MAX if arguments.metrics else HEAD_MAX):
                if not arguments.metrics and b"\r\n" in head:
                    break
                part = await stream.receive()
                if not part:
                    break
                head += part
        finally:
            await stream.close()
        parts = bytes(head).partition(b"\r\n")[0].split(b" ", 2)
        if len(parts) < 2 or not parts[0].startswith(b"HTTP/") or not parts[1].isdigit():
            raise HostFailure("probe_failed", f"port {arguments.port} does not speak HTTP")
        if int(parts[1]) not in arguments.status:
            raise HostFailure("probe_failed", f"{arguments.path} responded with {int(parts[1])}")
        if arguments.metrics:
            if len(head) >= METRICS_BYTES_MAX:
                raise HostFailure("probe_failed", f"{arguments.path} has more than {METRICS_BYTES_MAX} bytes")
            found["samples"] = samples_of(bytes(head).partition(b"\r\n\r\n")[2], arguments.metrics)
        return parts[1].decode()

    return await _probe(arguments, probe_once) | found


def samples_of(text: bytes, metrics: tuple[str, ...]) -> list[str]:
    """The lines of these metrics in Prometheus' text format; too many of them, or too long ones, are a failure."""
    wanted = frozenset(metrics)
    found: list[str] = []
    for line in text.decode("utf-8", "replace").split("\n"):  # no other character ends a line
        name = line.partition("{")[0].partition(" ")[0]
        if name not in wanted:
            continue
        if len(line) > SAMPLE_LENGTH_MAX or len(found) == SAMPLES_MAX:
            detail = f"{name}: at most {SAMPLES_MAX} samples of {SAMPLE_LENGTH_MAX} characters can be read"
            raise HostFailure("probe_failed", detail)
        found.append(line)
    return found


async def probe_exec(host: Host, context: TaskContext, arguments: task_arguments.ProbeExec) -> ResultFields:
    """Succeeds if a program exits with 0."""

    output: ResultFields = {}

    async def probe_once(attempt: int) -> str:
        key = f"{context.task.task_id}.{context.task.fence}.{attempt}"
        output.clear()
        process = ProcessSpec(
            arguments.argv, arguments.environment, arguments.user, output_bytes=arguments.output_bytes
        )
        code = await host.run(context.owner, key, process, arguments.timeout_seconds)
        output.update(await output_of(host, context, key, arguments.output_bytes))
        if code != 0:
            raise HostFailure("probe_failed", f"{arguments.argv[0]} exited with {code}", code, output)
        return "0"

    return await _probe(arguments, probe_once) | output


async def _probe(arguments: task_arguments.ProbeArguments, probe_once: Callable[[int], Awaitable[str]]) -> ResultFields:
    last_failure = HostFailure("probe_failed", "it was not tried")
    for attempt in range(arguments.attempts):
        if attempt:
            await asyncio.sleep(arguments.interval_seconds)
        started = time.monotonic()
        try:
            async with asyncio.timeout(arguments.timeout_seconds):
                observed = await probe_once(attempt)
        except TimeoutError:
            last_failure = HostFailure("probe_failed", f"no response within {arguments.timeout_seconds:g} s")
        except HostFailure as failure:
            last_failure = HostFailure("probe_failed", failure.detail, failure.exit_code, failure.result)
        else:
            latency = round((time.monotonic() - started) * 1_000)
            return {"observed": observed, "attempts": attempt + 1, "latency_milliseconds": latency}
    raise HostFailure(
        "probe_failed",
        f"after {arguments.attempts} attempts: {last_failure.detail}",
        last_failure.exit_code,
        last_failure.result,
    )


PROBES: Final[dict[str, TaskHandler]] = {
    "probe.tcp": TaskHandler(probe_tcp, room="probe"),
    "probe.http": TaskHandler(probe_http, room="probe"),
    "probe.exec": TaskHandler(probe_exec, room="probe"),
}
