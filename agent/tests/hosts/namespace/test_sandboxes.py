"""What a sandbox is, and what runs in it."""

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from agent.tests.support.namespace_sandboxes import Inside, namespaces_of, parsed, spec_of
from agent.tests.support.supervisors import DAEMON
from mooring_agent.control_plane.addresses import local_address
from mooring_agent.hosts.contract import (
    RESOURCE_KINDS,
    FileSpec,
    HostFailure,
    LogPart,
    LogRequest,
    Owner,
    Peer,
    ProcessSpec,
    RestartPolicy,
)
from mooring_agent.hosts.namespace import NamespaceHost, init_process, namespace_processes, project_network
from mooring_agent.hosts.namespace.init_process import NetworkHolder
from mooring_agent.hosts.namespace.machine_network import MachineNetwork
from mooring_agent.hosts.namespace.sandbox_records import SandboxStore, sandbox_owner
from mooring_agent.kernel import proc
from tests.support.waiting import turns
from tools.ports import free_port

pytestmark = pytest.mark.anyio

TOP = ["bin", "dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "sbin", "srv", "sys", "tmp", "usr", "var"]
LIBRARIES = [name for name in ("lib", "lib32", "lib64", "libx32") if Path("/", name).exists()]
PID_MAX = 1 << 22  # the kernel gives numbers below it
SERVE = "import http.server as h; h.HTTPServer(('0.0.0.0', {0}), h.SimpleHTTPRequestHandler).serve_forever()"


async def start_server(host: NamespaceHost, owner: Owner, port: int) -> None:
    """A web server; when this returns it accepts connections."""
    spec = ProcessSpec(("python3", "-c", SERVE.format(port)), directory="/srv")
    await host.start_service(owner, "web", spec, RestartPolicy("never"))
    listens = f"^ *[0-9]+: [0-9A-F]{{8}}:{port:04X} [0-9A-F]{{8}}:[0-9A-F]{{4}} 0A "
    code, text = await Inside(host, owner).run("sh", "-c", f"until grep -qE '{listens}' /proc/net/tcp; do :; done")
    assert code == 0, text


async def ask(host: NamespaceHost, allocation_id: str, port: int) -> bytes:
    """The first bytes of an HTTP response."""
    stream = await host.dial(allocation_id, port)
    await stream.send(b"GET / HTTP/1.0\r\n\r\n")
    answer = await stream.receive()
    await stream.close()
    return answer


async def test_a_sandbox_has_a_name_an_address_and_files_of_its_own(host: NamespaceHost) -> None:
    facts = await host.create(spec_of("alc_1", number=9))
    assert (facts.isolation, facts.address) == ("user_namespace", "10.77.0.9")
    assert set(facts.limits) >= {"memory", "cpu", "pids", "devices", "disk", "capabilities", "system_calls"}
    source = """
import json, os, socket, pwd
print(json.dumps({
    "name": socket.gethostname(),
    "own": socket.gethostbyname(socket.gethostname()),
    "pid": os.getpid() < 10,
    "root": sorted(os.listdir("/root") + os.listdir("/home") + os.listdir("/tmp") + os.listdir("/opt")),
    "top": sorted(os.listdir("/")),
    "app": pwd.getpwnam("app").pw_uid,
    "gpus": sorted(name for name in os.listdir("/dev") if "nvidia" in name or "gpu" in name),
    "simulated": open("/dev/simulated-gpus").read(),
}))
"""
    report = parsed(await Inside(host, Owner("alc_1", "member")).python(source))
    assert report == {
        "name": "host9",
        "own": "10.77.0.9",
        "pid": True,
        "root": ["app"],
        "top": sorted([*TOP, *LIBRARIES]),
        "app": 1000,
        "gpus": ["nvidia0", "simulated-gpus"],
        "simulated": "nvidia0\n",
    }


async def test_create_asked_twice_answers_how_it_stands(host: NamespaceHost) -> None:
    first = await host.create(spec_of("alc_1"))
    init = host.store.load_init(sandbox_owner("alc_1"))
    assert await host.create(spec_of("alc_1")) == first
    assert host.store.load_init(sandbox_owner("alc_1")) == init


async def test_members_of_one_project_reach_each_other_by_name_in_any_order(host: NamespaceHost) -> None:
    inside = Inside(host, Owner("alc_1", "member"))
    await host.create(spec_of("alc_1", number=5, peers=[Peer("far", "10.77.9.9")]))
    await host.create(spec_of("alc_2", number=6))
    await host.create(spec_of("alc_3", "two", number=7))
    await start_server(host, Owner("alc_2", "member"), 8000)
    source = "import urllib.request as r; print(r.urlopen('http://host6:8000/', timeout=60).status)"
    assert await inside.python(source) == "200\n"
    names = "getent hosts host5 host6 host7 far | cut -d' ' -f1; true"
    assert (await inside.run("sh", "-c", names))[1].split() == ["10.77.0.5", "10.77.0.6", "10.77.9.9"]
    assert (await Inside(host, Owner("alc_2", "member")).run("getent", "hosts", "host5"))[0] == 0
    assert (await host.destroy("alc_2")).clean
    assert (await inside.run("sh", "-c", names))[1].split() == ["10.77.0.5", "10.77.9.9"]


async def test_a_member_ends_while_the_member_whose_network_it_uses_ends_too(
    host: NamespaceHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (5, 6):
        await host.create(spec_of(f"alc_{number}", number=number))
    looked, by_a_member = [0], init_process.find_project_network

    def by_one_who_has_just_ended(store: SandboxStore, name: str) -> NetworkHolder | None:
        looked[0] += 1
        return NetworkHolder(PID_MAX, 1) if looked[0] % 2 else by_a_member(store, name)

    monkeypatch.setattr(init_process, "find_project_network", by_one_who_has_just_ended)
    assert (await host.destroy("alc_5")).clean
    assert looked[0] > 2
    place = by_a_member(host.store, spec_of("alc_6").network.name)
    assert place is not None
    assert project_network.list_links(place.path).count(project_network.link_name("alc_5")) == 0
    assert project_network.link_name("alc_6") in project_network.list_links(place.path)
    await host.sweep({"alc_6"})


async def test_a_member_comes_into_its_project_while_the_one_goes_whose_network_it_would_enter(
    host: NamespaceHost,
) -> None:
    await host.create(spec_of("alc_1", number=5))
    await Inside(host, Owner("alc_1", "member")).run("true")
    gone, _ = await asyncio.gather(host.destroy("alc_1"), host.create(spec_of("alc_2", number=6)))
    assert gone.clean
    assert (await Inside(host, Owner("alc_2", "member")).run("getent", "hosts", "host6"))[0] == 0


async def test_new_names_are_seen_through_the_same_file_and_what_the_tenant_added_stays(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1", peers=[Peer("old", "10.77.0.8")]))
    inside = Inside(host, Owner("alc_1", "member"))
    await inside.run("sh", "-c", "echo 10.9.9.9 mine >> /etc/hosts; stat -c %i /etc/hosts > /tmp/inode")
    await host.set_peers("alc_1", [Peer("new", "10.77.0.7")])
    _, text = await inside.run(
        "sh", "-c", "stat -c %i /etc/hosts | diff - /tmp/inode && getent hosts new mine; getent hosts old"
    )
    assert text.split() == ["10.77.0.7", "new", "10.9.9.9", "mine"]


async def test_a_tenant_who_makes_hosts_a_link_is_refused_and_nothing_is_written_through_it(
    host: NamespaceHost,
) -> None:
    await host.create(spec_of("alc_1"))
    inside = Inside(host, Owner("alc_1", "member"))
    await inside.run("sh", "-c", "echo keep > /tmp/target; ln -sf /tmp/target /etc/hosts")
    with pytest.raises(HostFailure, match="path_refused"):
        await host.set_peers("alc_1", [Peer("new", "10.77.0.7")])
    assert (await inside.run("cat", "/tmp/target"))[1] == "keep\n"


async def test_files_are_written_for_their_user_and_odd_paths_are_refused(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    owner = Owner("alc_1", "member")
    inside = Inside(host, owner)
    files = [FileSpec("/etc/app/a.conf", b"hello", 0o600, "app"), FileSpec("/var/lib/app", mode=0o700, directory=True)]
    assert await host.write_files(owner, files) == 2
    _, text = await inside.run("stat", "-c", "%U %a %n", "/etc/app", "/etc/app/a.conf", "/var/lib/app")
    assert text == "app 755 /etc/app\napp 600 /etc/app/a.conf\nroot 700 /var/lib/app\n"
    assert (await inside.run("cat", "/etc/app/a.conf", user="app"))[1] == "hello"
    await inside.run("ln", "-s", "/proc/1/root", "/srv/out")
    odd = [
        "/etc/../etc/passwd",
        "/srv/out/x",
        "/usr/bin/x",
        "relative/../x",
        "/a\u202eb",
        "/proc/sys/kernel/x",
        "/bin/x",
    ]
    for path in odd:
        with pytest.raises(HostFailure):
            await host.write_files(owner, [FileSpec(path, b"x")])
    with pytest.raises(HostFailure, match="not_found"):
        await host.write_files(owner, [FileSpec("/srv/x", b"x", user="stranger")])


async def test_a_directory_that_two_owners_use_stays_with_the_second_and_is_not_called_left(
    host: NamespaceHost,
) -> None:
    await host.create(spec_of("alc_1"))
    one, two = Owner("alc_1", "one"), Owner("alc_1", "two")
    await host.write_files(one, [FileSpec("/srv/app", directory=True), FileSpec("/srv/app/one", b"x")])
    await host.write_files(two, [FileSpec("/srv/app", directory=True), FileSpec("/srv/app/two", b"y")])
    report = await host.close_owner(one)
    assert (report.clean, report.remaining) == (True, ())
    code, said = await Inside(host, two).run("ls", "/srv/app")
    assert (code, said.split()) == (0, ["two"])
    assert (await host.close_owner(two)).clean


async def test_an_owner_goes_with_all_that_it_had_while_the_other_keeps_serving(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    one, two = Owner("alc_1", "one"), Owner("alc_1", "two")
    await host.write_files(one, [FileSpec("/etc/one/conf", b"x")])
    await host.write_files(two, [FileSpec("/etc/two/conf", b"x")])
    await start_server(host, one, 8001)
    await start_server(host, two, 8002)
    await Inside(host, one).run("python3", "-c", DAEMON, "/tmp/daemon")
    await Inside(host, one).run("sh", "-c", "until [ -e /tmp/daemon.pid ]; do sleep 0.01; done")
    report = await host.close_owner(one)
    assert (report.clean, report.remaining) == (True, ())
    kinds = {resource.kind for resource in report.found}
    assert kinds == {"processes", "namespaces", "sockets", "ports", "files"}
    assert sum(resource.kind == "processes" for resource in report.found) >= 4
    assert ("ports", "tcp 8001") in {(resource.kind, resource.name) for resource in report.found}
    assert ("ports", "tcp 8002") not in {(resource.kind, resource.name) for resource in report.found}
    assert (await ask(host, "alc_1", 8002)).startswith(b"HTTP/1.0 200")
    with pytest.raises(HostFailure, match="not_found"):
        await host.dial("alc_1", 8001)
    _, listing = await Inside(host, two).run("ls", "/etc/one", "/etc/two")
    assert "conf" in listing
    assert "/etc/one" in listing
    assert "No such file" in listing


async def test_a_services_log_is_read_in_parts_by_whichever_agent_and_only_by_its_owner(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    one, two = Owner("alc_1", "one"), Owner("alc_1", "two")
    talks = ProcessSpec(("sh", "-c", "echo one; echo two >&2; exec sleep 1000"))
    await host.start_service(one, "web", talks, RestartPolicy("never"))
    again = NamespaceHost(host.store.state, "nod_test")
    await again.recover()
    place, said = 0, b""
    while said != b"one\ntwo\n":
        part = await again.read_log_part(one, "web", LogRequest(place, 0, 5)) or LogPart(b"", 0, 0, 0)
        assert (part.offset, part.truncated_before) == (place, False)
        place, said = part.next_offset, said + part.content
        await turns()
    tail = await again.read_log_part(one, "web", LogRequest(None, 1, 1_024))
    assert tail == LogPart(b"two\n", 4, 8, 8)
    assert await again.read_log_part(two, "web", LogRequest(0, 0, 1_024)) is None
    for name in ("../one/logs/web", "..", "/etc/passwd", "a/b"):
        with pytest.raises(HostFailure, match="path_refused"):
            await again.read_log_part(two, name, LogRequest(0, 0, 1_024))


async def test_owners_do_not_see_each_others_processes(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    await host.start_service(Owner("alc_1", "one"), "sleeper", ProcessSpec(("sleep", "987654")), RestartPolicy("never"))
    _, text = await Inside(host, Owner("alc_1", "two")).run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "987654" not in text
    assert "mooring-init" in text


async def test_what_was_destroyed_is_found_listed_and_gone(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    await start_server(host, Owner("alc_1", "member"), 8000)
    stream = await host.dial("alc_1", 8000)
    before, began = namespaces_of(host, "alc_1"), proc.ticks_now()
    report = await host.destroy("alc_1")
    assert (report.clean, report.remaining, report.not_looked) == (True, (), ())
    kinds = {resource.kind for resource in report.found}
    assert kinds >= {"processes", "namespaces", "mounts", "links", "sockets", "ports", "files"}
    assert set(report.removed) == set(report.found)
    assert set(report.looked) == set(RESOURCE_KINDS)
    held = {item for each in namespace_processes.survey() for item in each.namespaces.items() if item in before}
    # A newer process may have got the number of a namespace that is gone.
    later = {item for each in namespace_processes.survey() if each.start >= began for item in each.namespaces.items()}
    assert held - later == set()
    assert await stream.receive() == b""
    again = await host.destroy("alc_1")
    assert (again.clean, again.found) == (True, ())


async def test_a_thing_that_cannot_be_taken_away_is_named_and_the_next_try_is_clean(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    init = host.store.load_init(sandbox_owner("alc_1"))
    assert init is not None
    # A process of the machine holds the sandbox's network open: it lives on, and the receipt must not be clean.
    holder = await asyncio.create_subprocess_exec(
        "sh", "-c", f"exec 9</proc/{init.pid}/ns/net; echo ready; read _", stdin=-1, stdout=-1
    )
    assert holder.stdout is not None
    await holder.stdout.readline()
    report = await host.destroy("alc_1")
    assert [(resource.kind, resource.name) for resource in report.remaining] == [
        ("namespaces", f"net:[{init.namespaces['net']}]")
    ]
    assert not report.clean
    assert host.store.load("alc_1") is not None
    holder.kill()
    await holder.wait()
    assert (await host.destroy("alc_1")).clean


async def test_limits_of_memory_and_processes_are_in_force_where_the_facts_say_so(host: NamespaceHost) -> None:
    facts = await host.create(spec_of("alc_1"))
    inside = Inside(host, Owner("alc_1", "member"))
    if facts.limits["memory"].startswith("cgroup"):
        code, _ = await inside.run("python3", "-c", "x = bytearray(700 * 1024 * 1024); print(len(x))")
        assert code == 137
    # What a child writes to is copied: it only waits, so that processes run out before memory does.
    source = """
import gc, os, signal
gc.freeze()
made = 0
try:
    while made < 1000:
        if os.fork() == 0:
            signal.pause()
        made += 1
except OSError:
    pass
print(made, flush=True)
os.killpg(0, 9)
"""
    code, text = await inside.run("python3", "-c", source)
    assert facts.limits["pids"] in ("RLIMIT_NPROC", "cgroup v1", "cgroup v2")
    assert 0 < int(text.split()[0]) < 200


async def test_many_small_programs_that_use_up_the_memory_do_not_end_their_supervisor(host: NamespaceHost) -> None:
    facts = await host.create(spec_of("alc_1"))
    if not facts.limits["memory"].startswith("cgroup"):
        pytest.skip(f"memory is limited by {facts.limits['memory']}")
    inside = Inside(host, Owner("alc_1", "member"))
    source = """
import subprocess, sys, time
program = "import signal; held = bytearray(4 * 1024 * 1024); signal.pause()"
started = [subprocess.Popen([sys.executable, "-S", "-c", program]) for _ in range(90)]
end = time.monotonic() + 120
while all(each.poll() is None for each in started) and time.monotonic() < end:
    started[0].poll()
print([each.poll() for each in started if each.poll() is not None][:1])
for each in started:
    each.kill()
"""
    code, text = await inside.run("python3", "-c", source)
    assert (code, text.strip()) in ((0, "[-9]"), (137, "")), "the kernel ended a program"
    assert (await inside.run("true"))[0] == 0, "the supervisor lives"


async def test_the_machines_network_is_used_only_when_allowed_and_dialled_only_where_the_sandbox_listens(
    host: NamespaceHost,
) -> None:
    host.machine = replace(host.machine, address=local_address(""), network=MachineNetwork("shared"))
    facts = await host.create(spec_of("alc_1", machine_network=True))
    assert facts.address == host.machine.address
    assert facts.limits["network"].startswith("not enforced: the machine's own network")
    inside = Inside(host, Owner("alc_1", "member"))
    code, output = await inside.run("getent", "hosts", "host5")
    assert (code, output.split()) == (0, [facts.address, "host5"])
    init = host.store.load_init(sandbox_owner("alc_1"))
    assert init is not None
    assert init.namespaces["net"] == namespace_processes.own_namespaces()["net"]
    with socket.create_server(("127.0.0.1", 0)) as foreign, pytest.raises(HostFailure, match="not_found"):
        await host.dial("alc_1", foreign.getsockname()[1])
    port = free_port()
    await start_server(host, Owner("alc_1", "member"), port)
    assert (await ask(host, "alc_1", port)).startswith(b"HTTP/1.0 200")
    report = await host.destroy("alc_1")
    assert report.clean
    assert ("ports", f"tcp {port}") in {(resource.kind, resource.name) for resource in report.found}


async def test_an_interactive_command_has_a_terminal_of_its_own(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    argv = ("sh", "-c", "tty; id -un; stty size; read line; echo got $line; exit 7")
    command = await host.open_command(Owner("alc_1", "member"), ProcessSpec(argv, user="app"), 90, 30)
    await command.send(b"hello\n")
    text = b""
    while part := await command.receive():
        text += part
    assert await command.exit_code() == 7
    assert b"/dev/pts/0" in text
    # The terminal may echo what is typed at any moment.
    assert text.replace(b"hello\r\n", b"", 1).startswith(b"/dev/pts/0\r\napp\r\n30 90\r\n")
    assert b"got hello" in text
    await command.close()


async def test_a_user_whom_the_sandbox_calls_otherwise_but_who_is_root_gets_no_interactive_command(
    host: NamespaceHost,
) -> None:
    await host.create(spec_of("alc_1"))
    inside = Inside(host, Owner("alc_1"))
    added = "echo toor:x:0:0::/root:/bin/sh >> /etc/passwd; echo group:x:4711:0::/:/bin/sh >> /etc/passwd"
    assert (await inside.run("sh", "-c", added))[0] == 0
    for name in ("toor", "group", "root"):
        with pytest.raises(HostFailure, match="root in the sandbox") as refused:
            await host.open_command(Owner("alc_1"), ProcessSpec(("id",), user=name), 80, 24)
        assert refused.value.code == "refused"
        with pytest.raises(HostFailure, match="root in the sandbox"):
            await host.open_piped(Owner("alc_1"), ProcessSpec(("id",), user=name))


async def test_a_bounded_sandbox_says_so(host: NamespaceHost) -> None:
    facts = await host.create(spec_of("alc_1", isolation="bounded"))
    assert facts.isolation == "bounded"
    assert (await Inside(host, Owner("alc_1")).run("id", "-u"))[1] == "0\n"


@pytest.mark.parametrize(
    "change", ["hostname", "address", "isolation", "identifier", "memory"], ids=lambda name: f"with_an_odd_{name}"
)
async def test_a_sandbox_is_refused_and_nothing_is_made(host: NamespaceHost, change: str) -> None:
    spec = spec_of("alc_1")
    odd = {
        "hostname": replace(spec, hostname="a b"),
        "address": replace(spec, network=replace(spec.network, address="10.78.0.5")),
        "isolation": replace(spec, isolation="none"),
        "identifier": replace(spec, allocation_id="../alc"),
        "memory": replace(spec, memory_bytes=0),
    }
    with pytest.raises(HostFailure):
        await host.create(odd[change])
    assert host.store.allocations() == []
