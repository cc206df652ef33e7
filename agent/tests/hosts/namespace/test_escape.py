"""Ways out of a sandbox that once led to the machine's root, tried again with variations."""

import encodings
import os
import stat
from pathlib import Path

import pytest

import mooring_agent
from agent.tests.support.namespace_sandboxes import Inside, spec_of
from agent.tests.support.supervisors import until
from mooring_agent.hosts.contract import (
    FileSpec,
    HostFailure,
    Isolation,
    LogRequest,
    Owner,
    ProcessSpec,
    RestartPolicy,
)
from mooring_agent.hosts.namespace import NamespaceHost, create, init_process, namespace_processes
from mooring_agent.hosts.namespace.sandbox_records import sandbox_owner
from mooring_agent.kernel import proc
from mooring_agent.sandbox_init.spawner import raise_memory_score

pytestmark = pytest.mark.anyio

MEMBER = Owner("alc_1", "member")
AGENT = Path(mooring_agent.__file__).parent
EVIL = b"import os\nos.close(os.open('/tmp/imported', os.O_CREAT))\nraise LookupError\n"
INIT_PROGRAM = "/memfd:mooring-init (deleted)"
COOKIE = b"# coding: mooring_evil\n"

# Leaves the terminal with a foreground process group whose last process is gone.
DEAD_FOREGROUND = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    signal.pause()
os.setpgid(child, child)
os.tcsetpgrp(0, child)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print("dead", flush=True)
signal.pause()
"""


def trap_files() -> list[FileSpec]:
    """The agent's and Python's own paths, as files of the tenant's that import a module of the tenant's when read."""
    sources = [FileSpec(str(each), COOKIE) for each in AGENT.rglob("*.py")]
    places = [Path(encodings.__file__).parent, AGENT.parent, AGENT, AGENT.parent / "encodings"]
    return [*sources, *(FileSpec(str(each / "mooring_evil.py"), EVIL) for each in places)]


@pytest.mark.parametrize("isolation", ["user_namespace", "bounded"])
async def test_an_owner_does_not_enter_the_process_that_has_the_number_of_its_sandbox_now(
    host: NamespaceHost, isolation: Isolation
) -> None:
    """The sandbox may end while the spawner starts; another process, even of the machine, has its number then."""
    for number in (1, 2):
        await host.create(spec_of(f"alc_{number}", f"net{number}", number=number, isolation=isolation))
    record, sandbox = host.store.load("alc_1"), host.store.load_init(sandbox_owner("alc_1"))
    neighbour = host.store.load_init(sandbox_owner("alc_2"))
    assert record is not None
    assert sandbox is not None
    assert neighbour is not None
    for pid in (neighbour.pid, os.getpid()):
        plan = init_process.owner_plan(host.store, record, MEMBER, sandbox) | {"sandbox_pid": pid}
        with pytest.raises(HostFailure, match="another process"):
            init_process._spawn_init(host.store, MEMBER, "owner", plan)
    assert (await Inside(host, MEMBER).run("hostname"))[1] == "host1\n"


async def test_a_sandbox_does_not_join_the_network_of_another_process(host: NamespaceHost) -> None:
    """The number of the member whose network is joined may be another process's by now."""
    await host.create(spec_of("alc_1"))
    found = init_process.find_project_network(host.store, "one")
    assert found is not None
    stale = found._replace(start=found.start + 1)
    record = create.record_intent(host.machine, spec_of("alc_2", number=6))
    for step in create.STEPS[: create.STEPS.index(create.spawn_init)]:
        record = step(host.machine, record)
    plan = init_process.sandbox_plan(host.store, record, stale)
    with pytest.raises(HostFailure, match="another process"):
        init_process._spawn_init(host.store, sandbox_owner("alc_2"), "sandbox", plan)


async def test_an_error_in_the_supervisor_imports_nothing_of_the_tenants(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    writable = [each for each in trap_files() if not each.path.startswith("/usr/")]
    await host.write_files(MEMBER, writable)
    program = ProcessSpec(("python3", "-c", DEAD_FOREGROUND), user="app")
    command = await host.open_command(MEMBER, program, 80, 24)
    seen = b""
    while b"dead" not in seen:
        seen += await command.receive()
    await command.signal(2)
    await command.signal(15)
    await command.close()
    # Requests are handled one after another: when the next one is answered, the signals were handled.
    _, listed = await Inside(host, MEMBER).run("ls", "/tmp")
    assert "imported" not in listed


def lines_of(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def inits_of(host: NamespaceHost) -> list[int]:
    """The pid 1 of the sandbox and of each of its owners."""
    found = [host.store.load_init(owner) for owner in host.store.owners("alc_1")]
    return [init.pid for init in found if init is not None]


@pytest.mark.parametrize("isolation", ["user_namespace", "bounded"])
async def test_neither_an_interpreter_nor_a_file_of_the_machine_is_inside(
    host: NamespaceHost, isolation: Isolation
) -> None:
    await host.create(spec_of("alc_1", isolation=isolation))
    await host.start_service(MEMBER, "web", ProcessSpec(("sleep", "1000")), RestartPolicy("never"))
    inits = inits_of(host)
    assert len(inits) == 2
    for pid in inits:
        assert os.readlink(f"/proc/{pid}/exe") == INIT_PROGRAM
        assert {line.split(maxsplit=5)[5] for line in lines_of(f"/proc/{pid}/maps") if "/" in line} == {INIT_PROGRAM}
        for descriptor, target in proc.descriptors(pid):
            if target.startswith("net:["):
                continue  # the project's own network, which a sandbox's init holds for the next member
            mode = os.stat(f"/proc/{pid}/fd/{descriptor}").st_mode
            assert not stat.S_ISREG(mode), target
            assert not stat.S_ISDIR(mode), target
    numbers = {namespace_processes.read(pid).namespaces["mnt"] for pid in inits}  # type: ignore[union-attr]
    inside = [each for each in namespace_processes.survey() if each.namespaces.get("mnt") in numbers]
    assert sorted(each.name for each in inside) == ["mooring-init", "mooring-init", "sleep"]


async def test_the_supervisor_is_outside_and_may_do_nothing(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    await Inside(host, MEMBER).run("true")
    init = host.store.load_init(MEMBER)
    assert init is not None
    supervisor = namespace_processes.read(init.supervisor_pid)
    assert supervisor is not None
    assert supervisor.namespaces == namespace_processes.own_namespaces()
    status = dict(line.split(":\t", 1) for line in lines_of(f"/proc/{supervisor.pid}/status"))
    assert [int(status[kind], 16) for kind in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")] == [0] * 5
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


async def test_nothing_of_the_tenants_can_reach_its_logs(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    inside = Inside(host, MEMBER)
    await inside.run("sh", "-c", "echo hello")
    data = host.store.owner(MEMBER) / "data"
    for each in (data, *data.rglob("*")):
        status = each.lstat()
        assert (status.st_uid, status.st_mode & 0o077) == (0, 0), each


async def test_a_log_that_is_not_a_plain_file_is_neither_followed_nor_waited_for(host: NamespaceHost) -> None:
    """As if something had replaced the segments: the agent reads logs as the machine's root."""
    await host.create(spec_of("alc_1"))
    inside = Inside(host, MEMBER)
    secret = host.store.state / "secret"
    secret.write_text("the machine's secret")
    for name in ("link", "fifo", "socket_link", "directory"):
        await host.run(MEMBER, name, ProcessSpec(("echo", "hello"), output_bytes=100), 60)
        logs = host.store.owner(MEMBER) / "data" / "label-member" / "logs" / name
        for file in list(logs.iterdir()):
            file.unlink()
            if name == "link":
                file.symlink_to(secret)
            elif name == "fifo":
                os.mkfifo(file)
            elif name == "socket_link":
                file.symlink_to(host.store.owner(MEMBER) / "supervisor.sock")
            else:
                file.mkdir()
        assert "secret" not in await inside.log(name)
        part = await host.read_log_part(MEMBER, name, LogRequest(None, 1000, 10))
        assert part is None or part.content == b""
        with pytest.raises(OSError, match=r"symbolic links|not a regular file|No such device"):
            await host.read_output(MEMBER, name)


@pytest.mark.parametrize("victim", ["init", "supervisor"])
async def test_init_and_supervisor_live_and_die_together(host: NamespaceHost, victim: str) -> None:
    await host.create(spec_of("alc_1"))
    await host.start_service(MEMBER, "web", ProcessSpec(("sleep", "1000")), RestartPolicy("always"))
    init = host.store.load_init(MEMBER)
    assert init is not None
    os.kill(init.pid if victim == "init" else init.supervisor_pid, 9)
    await until(lambda: namespace_processes.read(init.pid) is None)
    await until(lambda: not namespace_processes.find_supervisors([init]))
    inside = [each for each in namespace_processes.survey() if each.namespaces.get("pid") == init.namespaces["pid"]]
    assert inside == []
    # The next request gets a new pair, which knows that the service was lost.
    assert (await Inside(host, MEMBER).run("true"))[0] == 0
    assert (await host.inspect_service(MEMBER, "web")).state == "failed"


def test_programs_do_not_inherit_an_agents_protection_from_running_out_of_memory(tmp_path: Path) -> None:
    score = tmp_path / "oom_score_adj"
    for before, after in (("-900\n", 0), ("0\n", 0), ("300\n", 300)):
        score.write_text(before)
        raise_memory_score(str(score), 0)
        assert int(score.read_text().split()[0]) == after


async def test_a_sandbox_has_a_bounded_number_of_terminals(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    source = """
import os
count = 0
try:
    while count < 5000:
        os.open("/dev/ptmx", os.O_RDWR)
        count += 1
except OSError as problem:
    print(count, problem.errno)
"""
    count, problem = (await Inside(host, MEMBER).python(source)).split()
    assert (int(count) <= 256, int(problem)) == (True, 28)


async def test_a_system_call_that_is_in_no_table_does_not_exist(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    source = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def outcome(number, *arguments):
    ctypes.set_errno(0)
    return number if libc.syscall(number, *arguments) >= 0 else -ctypes.get_errno()
machine = os.uname().machine
personality, fanotify_init, getpid = (135, 300, 39) if machine == "x86_64" else (92, 262, 172)
print(outcome(457), outcome(999), outcome(fanotify_init, 0, 0), outcome(personality, 0x0100000) , outcome(getpid) > 0,
      outcome(personality, 0x40000) >= 0)
"""
    seen = (await Inside(host, MEMBER).python(source)).split()
    assert seen == ["-38", "-38", "-1", "-1", "True", "True"]


@pytest.mark.parametrize("isolation", ["user_namespace", "bounded"])
async def test_device_nodes_are_refused_by_a_second_wall(host: NamespaceHost, isolation: Isolation) -> None:
    """The missing capability answers EPERM; Landlock, which is asked first, EACCES. Plain files move as before."""
    await host.create(spec_of("alc_1", isolation=isolation))
    source = """
import os, stat
for kind in (stat.S_IFCHR, stat.S_IFBLK):
    try:
        os.mknod("/tmp/node", kind | 0o600, os.makedev(1, 3))
    except OSError as problem:
        print(problem.errno)
os.mkfifo("/tmp/fifo")
os.makedirs("/tmp/a/b")
open("/tmp/a/file", "w").close()
os.rename("/tmp/a/file", "/srv/file")
os.link("/srv/file", "/home/file")
print(os.stat("/home/file").st_nlink)
"""
    assert (await Inside(host, MEMBER).python(source)).split() == ["13", "13", "2"]
