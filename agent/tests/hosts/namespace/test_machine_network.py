"""What a sandbox that has the whole machine reaches, and what it does not; machines are network namespaces here."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from agent.tests.support import killed_namespace_agent, whole_machine
from agent.tests.support.namespace_sandboxes import Inside, left_of, spec_of
from agent.tests.support.supervisors import until
from mooring_agent.hosts.contract import HostFailure, Owner, ProcessSpec, RestartPolicy
from mooring_agent.hosts.namespace import NamespaceHost, create, destroy, machine_network, nft_tables
from mooring_agent.hosts.namespace.machine_network import MachineNetwork
from mooring_agent.hosts.namespace.project_network import list_links, run_inside
from tests.e2e.network_namespaces import NAMESPACES, NetworkNamespace, network_namespaces

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[4]
ENVIRONMENT = {"PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
PORT = 7_007
METADATA = "169.254.169.254"
MANAGEMENT = "10.213.79.1"
LOCAL6 = "fe80::77"
METADATA6 = "fd00:ec2::254"
OWNER = Owner("alc_1", "member")
DIAL = """
import json, socket
found = {{}}
for name, host, port in {targets}:
    try:
        with socket.create_connection((host, port), timeout=3) as connection:
            found[name] = "reached"
    except OSError as problem:
        found[name] = type(problem).__name__
print(json.dumps(found))
"""
SAY_WHO = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    while True:
        connection, peer = server.accept()
        with connection:
            connection.sendall(f"{peer[0]} {connection.getsockname()[0]}".encode())
"""
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as connection:
    print(connection.getsockname()[0], connection.recv(100).decode())
"""


def path_of(machine: NetworkNamespace) -> str:
    return str(NAMESPACES / machine.name)


def ip(machine: NetworkNamespace, *words: str) -> str:
    return subprocess.run(["ip", "-n", machine.name, *words], capture_output=True, text=True, check=True).stdout


def host_on(machine: NetworkNamespace, state: Path, node: str = "nod_test") -> NamespaceHost:
    return NamespaceHost(
        state, node, address=machine.address, machine_network=MachineNetwork(namespace=path_of(machine))
    )


def traces_of(machine: NetworkNamespace) -> list[str]:
    """What routing changes on a machine: links, addresses, routes, tables, forwarding."""

    def read() -> list[str]:
        files = sorted(Path("/proc/sys/net/ipv4/conf").glob("*/forwarding"))
        return [f"{file}: {file.read_text().strip()}" for file in files]

    tables = subprocess.run(
        [*machine.command_prefix, "nft", "list", "ruleset"], capture_output=True, text=True, check=True
    ).stdout
    return [
        *list_links(path_of(machine)),
        tables,
        ip(machine, "-4", "-br", "address"),
        ip(machine, "route"),
        ip(machine, "rule"),
        *run_inside(path_of(machine), read),
    ]


@pytest.fixture
def machines() -> Iterator[list[NetworkNamespace]]:
    """Two machines and a neighbour on one wire; each must be left as it was."""
    with network_namespaces(3, ()) as made:
        before = [traces_of(each) for each in made]
        yield made
        assert [traces_of(each) for each in made] == before


def listen(stack: ExitStack, machine: NetworkNamespace, address: str, port: int) -> None:
    """Somebody of the machine who accepts connections."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = run_inside(path_of(machine), lambda: socket.create_server((address, port), family=family))
    stack.enter_context(server)


async def serve(host: NamespaceHost, address: str, port: int) -> None:
    """A program of the sandbox that tells its callers who they are, and whom they called."""
    spec = ProcessSpec(("python3", "-c", SAY_WHO, address, str(port)))
    await host.start_service(OWNER, "server", spec, RestartPolicy("never"))
    listens = f":{port:04X} 00000000:0000 0A "
    code, _ = await Inside(host, OWNER).run("sh", "-c", f"until grep -q '{listens}' /proc/net/tcp; do :; done")
    assert code == 0


async def ask(host: NamespaceHost, address: str, port: int) -> list[str]:
    """The caller's own address, as the caller sees it and as the server does, and the server's."""
    code, text = await Inside(host, OWNER).run("python3", "-c", ASK, address, str(port))
    assert code == 0, text
    return text.split()


async def test_the_machine_and_its_metadata_are_out_of_reach_from_inside(
    machines: list[NetworkNamespace], tmp_path: Path
) -> None:
    machine, neighbour = machines[0], machines[2]
    with ExitStack() as stack:
        ip(machine, "link", "add", "mgmt", "type", "bridge")
        stack.callback(ip, machine, "link", "del", "mgmt")
        ip(machine, "address", "add", f"{MANAGEMENT}/24", "dev", "mgmt")
        ip(machine, "link", "set", "mgmt", "up")
        ip(machine, "address", "add", "169.254.1.1/32", "dev", "lo")
        stack.callback(ip, machine, "address", "del", "169.254.1.1/32", "dev", "lo")
        ip(neighbour, "address", "add", f"{METADATA}/32", "dev", "lo")
        stack.callback(ip, neighbour, "address", "del", f"{METADATA}/32", "dev", "lo")
        ip(machine, "route", "add", METADATA, "via", neighbour.address)
        stack.callback(ip, machine, "route", "del", METADATA)
        # Without the check for duplicates, which takes a second.
        ip(machine, "address", "add", f"{LOCAL6}/64", "dev", "eth0", "nodad")
        stack.callback(ip, machine, "address", "del", f"{LOCAL6}/64", "dev", "eth0")
        listen(stack, machine, "127.0.0.1", PORT)  # where the platform of a small site listens
        for every in ("0.0.0.0", "::"):
            listen(stack, machine, every, PORT + 1)
        listen(stack, neighbour, "0.0.0.0", PORT)
        targets = [
            ("the platform on the machine's loopback", "127.0.0.1", PORT),
            ("a service on the machine's own address", machine.address, PORT + 1),
            ("a service on another address of the machine", MANAGEMENT, PORT + 1),
            ("a link-local address of the machine", "169.254.1.1", PORT + 1),
            ("the metadata service of the site", METADATA, PORT),
            ("the IPv6 loopback", "::1", PORT + 1),
            ("an IPv6 link-local address", f"{LOCAL6}%eth0", PORT + 1),
            ("another machine", neighbour.address, PORT),
        ]
        process = await asyncio.create_subprocess_exec(
            *machine.command_prefix,
            sys.executable,
            whole_machine.__file__,
            str(tmp_path / "state"),
            machine.address,
            env=ENVIRONMENT,
            stdin=-1,
            stdout=-1,
            stderr=-1,
        )
        output, errors = await process.communicate(DIAL.format(targets=targets).encode())
        assert process.returncode == 0, errors.decode()
    found = json.loads(output)
    assert [name for name, outcome in found.items() if outcome == "reached"] == ["another machine"]


async def test_sandboxes_on_two_machines_reach_each_other_and_themselves_by_the_machines_addresses(
    machines: list[NetworkNamespace], tmp_path: Path
) -> None:
    one, two, _ = machines
    hosts = [host_on(one, tmp_path / "one"), host_on(two, tmp_path / "two")]
    with ExitStack() as stack:
        listen(stack, one, "0.0.0.0", PORT + 1)
        for host, machine in zip(hosts, (one, two), strict=True):
            facts = await host.create(spec_of("alc_1", machine_network=True))
            assert (facts.address, facts.limits["network"]) == (machine.address, "routed")
            # A program may bind every address, or only the one that the others know.
            await serve(host, "0.0.0.0" if machine is one else machine.address, PORT)
        for here, there, address in ((0, one, two.address), (1, two, one.address)):
            assert await ask(hosts[here], address, PORT) == [there.address, there.address, address]
            assert await ask(hosts[here], there.address, PORT) == [there.address] * 3
            stream = await hosts[here].dial("alc_1", PORT)
            assert (await stream.receive()).split()
            await stream.close()
        # What the machine listens on stays the machine's, also if the sandbox has the same port.
        with pytest.raises(HostFailure, match="not_found"):
            await hosts[0].dial("alc_1", PORT + 1)
        source = DIAL.format(targets=[("machine", one.address, PORT + 1)])
        assert json.loads(await Inside(hosts[1], OWNER).python(source)) == {"machine": "reached"}
    for host in hosts:
        report = await host.destroy("alc_1")
        assert report.clean
        kinds = [each.name for each in report.removed if each.kind == "links"]
        assert [name for name in kinds if name.startswith(("mrw", "mooring_"))]
        assert left_of(host) == []


async def test_sandboxes_of_two_agents_of_one_machine_do_not_reach_each_other(
    machines: list[NetworkNamespace], tmp_path: Path
) -> None:
    hosts = [host_on(machines[0], tmp_path / name, name) for name in ("one", "two")]
    for host in hosts:
        await host.create(spec_of("alc_1", machine_network=True))
        await serve(host, "0.0.0.0", PORT + len(host.store.label))
    record = hosts[1].store.load("alc_1")
    assert record is not None
    link = create.routed_link(hosts[1].machine, record)
    targets = [(each, each, PORT + len(hosts[1].store.label)) for each in (link.inside, link.gateway)]
    found = json.loads(await Inside(hosts[0], OWNER).python(DIAL.format(targets=targets)))
    assert "reached" not in found.values()
    # The first to go leaves the other one its routes.
    assert (await hosts[0].destroy("alc_1")).clean
    with ExitStack() as stack:
        listen(stack, machines[2], "0.0.0.0", PORT)
        targets = [("neighbour", machines[2].address, PORT)]
        found = json.loads(await Inside(hosts[1], OWNER).python(DIAL.format(targets=targets)))
    assert found == {"neighbour": "reached"}
    assert (await hosts[1].destroy("alc_1")).clean


async def test_the_policy_survives_a_flush_of_the_machines_rules_and_the_sweep_restores_them(
    machines: list[NetworkNamespace], tmp_path: Path
) -> None:
    machine, neighbour = machines[0], machines[2]
    host = host_on(machine, tmp_path / "state")
    host.machine = replace(host.machine, network=replace(host.machine.network, denied=(f"{machines[1].address}/32",)))
    await host.create(spec_of("alc_1", machine_network=True))
    record = host.store.load("alc_1")
    assert record is not None
    with ExitStack() as stack:
        for each in machines:
            listen(stack, each, "0.0.0.0", PORT)
        gateway = create.routed_link(host.machine, record).gateway
        targets = [
            ("machine", gateway, PORT),
            ("denied", machines[1].address, PORT),
            ("neighbour", neighbour.address, PORT),
        ]
        source = DIAL.format(targets=targets)
        inside = Inside(host, OWNER)
        run_on(machine, "nft", "flush", "ruleset")
        found = json.loads(await inside.python(source))
        assert "reached" not in (found["machine"], found["denied"])
        await host.sweep(["alc_1"])
        found = json.loads(await inside.python(source))
        assert [name for name, outcome in found.items() if outcome == "reached"] == ["neighbour"]
    assert (await host.destroy("alc_1")).clean


FAR = "192.0.2.9"


async def test_a_flush_of_the_machines_rules_makes_it_no_router_and_they_return_by_themselves(
    machines: list[NetworkNamespace], tmp_path: Path
) -> None:
    """A neighbour on the wire sends packets for a third machine through this one, before, during and after."""
    machine, sender, target = machines
    host = host_on(machine, tmp_path / "state")
    with ExitStack() as stack:
        ip(target, "address", "add", f"{FAR}/32", "dev", "lo")
        stack.callback(ip, target, "address", "del", f"{FAR}/32", "dev", "lo")
        for here, gateway in ((sender, machine), (machine, target)):
            ip(here, "route", "add", FAR, "via", gateway.address)
            stack.callback(ip, here, "route", "del", FAR)
        listen(stack, target, "0.0.0.0", PORT)
        await host.create(spec_of("alc_1", machine_network=True))
        watching = asyncio.create_task(host.watch())
        before = rules_of(machine)
        try:
            for flush in (("nft", "flush", "ruleset"), ("ip", "rule", "del", "priority", "7"), None):
                if flush is not None:
                    run_on(machine, *flush)
                assert not await asyncio.to_thread(passes, sender)
                await until(lambda: rules_of(machine) == before)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        inside = Inside(host, OWNER)
        found = json.loads(await inside.python(DIAL.format(targets=[("target", target.address, PORT)])))
        assert found == {"target": "reached"}
        # Also after a flush that nobody has mended, the last sandbox to go switches forwarding off.
        run_on(machine, "nft", "flush", "ruleset")
        assert (await host.destroy("alc_1")).clean


def passes(sender: NetworkNamespace) -> bool:
    """Whether a packet gets through the machine between them."""
    try:
        connection = run_inside(path_of(sender), lambda: socket.create_connection((FAR, PORT), timeout=0.5))
    except OSError:
        return False
    connection.close()
    return True


def rules_of(machine: NetworkNamespace) -> tuple[list[str], str]:
    return sorted(nft_tables.list_tables(path_of(machine))), ip(machine, "rule")


def run_on(machine: NetworkNamespace, *words: str) -> None:
    subprocess.run([*machine.command_prefix, *words], check=True)


async def test_where_a_machine_cannot_route_a_whole_machine_is_refused_until_the_operator_allows_it(
    host: NamespaceHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_network, "unavailable_reason", lambda: "missing programs: nft")
    assert host.machine.network.describe() == "refused: missing programs: nft"
    with pytest.raises(HostFailure, match="--machine-network shared") as refused:
        await host.create(spec_of("alc_1", machine_network=True))
    assert refused.value.code == "refused"
    assert host.store.allocations() == []
    host.machine = replace(host.machine, network=MachineNetwork("shared"))
    assert host.machine.network.describe() == "shared"
    await host.create(spec_of("alc_1", machine_network=True))


async def test_a_link_without_a_sandbox_is_reaped(machines: list[NetworkNamespace], tmp_path: Path) -> None:
    host = host_on(machines[0], tmp_path / "state")
    link = machine_network.link_of(host.store.label, "alc_gone", "198.19.0.0/30", machines[0].address)
    machine_network.restrict(host.machine.network, link)
    ip(machines[0], "link", "add", link.name, "type", "veth", "peer", "name", "other")
    assert link.name in {stray.resource.name for stray in await host.sweep([])}


CREATING = ["begin", *(step.__name__ for step in create.STEPS)]
DESTROYING = ["begin", *(step.__name__ for step in destroy.STEPS)]


@pytest.mark.parametrize(
    ("what", "step"), [*(("create", step) for step in CREATING), *(("destroy", step) for step in DESTROYING)]
)
async def test_an_agent_that_is_killed_at_any_step_leaves_a_routed_sandbox_that_the_next_completes_or_removes(
    machines: list[NetworkNamespace], tmp_path: Path, what: str, step: str
) -> None:
    machine, neighbour = machines[0], machines[2]
    host = host_on(machine, tmp_path / "state", killed_namespace_agent.NODE)
    if what == "destroy":
        await host.create(spec_of("alc_1", machine_network=True))
    script = [killed_namespace_agent.__file__, what, str(tmp_path / "state"), "user_namespace", step, machine.address]
    process = await asyncio.create_subprocess_exec(
        *machine.command_prefix, sys.executable, *script, env=ENVIRONMENT, stderr=-1
    )
    _, errors = await process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()
    if what == "create":
        assert await host.recover() == ["alc_1"]
        with ExitStack() as stack:
            listen(stack, neighbour, "0.0.0.0", PORT)
            targets = [("neighbour", neighbour.address, PORT)]
            found = json.loads(await Inside(host, OWNER).python(DIAL.format(targets=targets)))
        assert found == {"neighbour": "reached"}
    report = await host.destroy("alc_1")
    assert report.clean, report
    assert left_of(host) == []


HOLD = """
import json, socket
found, kept = [], []
for source in {sources}:
    connection = socket.socket()
    connection.settimeout(3)
    connection.bind(("0.0.0.0", source))
    try:
        connection.connect(("{host}", {port}))
        found.append("reached")
        kept.append(connection)
    except OSError as problem:
        found.append(type(problem).__name__)
print(json.dumps(found))
"""


async def test_a_sandbox_has_a_bounded_part_of_the_machines_table_of_connections(
    machines: list[NetworkNamespace], tmp_path: Path
) -> None:
    machine, neighbour = machines[0], machines[2]
    host = host_on(machine, tmp_path / "state")
    network = replace(host.machine.network, connections=512)  # two for each value of the port's lower bits
    host.machine = replace(host.machine, network=network)
    await host.create(spec_of("alc_1", machine_network=True))
    sources = [40_000, 40_256, 40_512, 40_001]
    with ExitStack() as stack:
        listen(stack, neighbour, "0.0.0.0", PORT)
        source = HOLD.format(sources=sources, host=neighbour.address, port=PORT)
        first, second, third, other = json.loads(await Inside(host, OWNER).python(source))
    assert (first, second, other) == ("reached",) * 3
    assert third != "reached"
    assert (await host.destroy("alc_1")).clean


async def test_a_sandbox_whose_ipv6_is_switched_on_reaches_nothing_by_it(
    machines: list[NetworkNamespace], tmp_path: Path
) -> None:
    machine, neighbour = machines[0], machines[2]
    host = host_on(machine, tmp_path / "state")
    await host.create(spec_of("alc_1", machine_network=True))
    record = host.store.load("alc_1")
    assert record is not None
    link, sandbox = create.routed_link(host.machine, record), host.network_path("alc_1")

    def switch(name: str, value: str) -> None:
        Path("/proc/sys/net/ipv6/conf", name).write_text(value)

    def inside(*words: str) -> str:
        """As somebody who rules the sandbox's network, which its programs do not."""
        done = subprocess.run(["nsenter", f"--net={sandbox}", *words], capture_output=True, text=True, check=True)
        return done.stdout

    run_inside(path_of(machine), lambda: switch(f"{link.name}/disable_ipv6", "0"))
    run_inside(path_of(machine), lambda: switch("all/forwarding", "1"))
    run_inside(sandbox, lambda: switch("eth0/disable_ipv6", "0"))
    ip(machine, "address", "add", "fd00:77::1/64", "dev", link.name, "nodad")
    ip(machine, "address", "add", f"{LOCAL6}/64", "dev", link.name, "nodad")
    inside("ip", "address", "add", "fd00:77::2/64", "dev", "eth0", "nodad")
    inside("ip", "address", "add", "fe80::78/64", "dev", "eth0", "nodad")
    inside("ip", "-6", "route", "add", "default", "via", "fd00:77::1")
    with ExitStack() as stack:
        for place, device, address in (
            (machine, "lo", f"{METADATA6}/128"),
            (machine, "lo", "fd00:79::1/128"),
            (machine, "eth0", "fd00:78::1/64"),
            (neighbour, "eth0", "fd00:78::9/64"),
        ):
            ip(place, "address", "add", address, "dev", device, "nodad")
            stack.callback(ip, place, "address", "del", address, "dev", device)
        ip(neighbour, "-6", "route", "add", "fd00:77::/64", "via", "fd00:78::1")
        for each in (machine, neighbour):
            listen(stack, each, "::", PORT)
        targets = [
            (name, address, PORT)
            for name, address in (
                ("the machine's end of the link", "fd00:77::1"),
                ("its link-local address", f"{LOCAL6}%eth0"),
                ("the metadata service", METADATA6),
                ("a management address", "fd00:79::1"),
                ("another machine", "fd00:78::9"),
            )
        ]
        source = DIAL.format(targets=targets)
        reached = []
        for without in ((), ("inet", "mooring")):  # both walls, then the machine's alone
            if without:
                inside("nft", "delete", "table", *without)
            reached.append(json.loads(inside("python3", "-c", source)))
        run_on(machine, "nft", "delete", "table", "inet", link.table)
        open_ = json.loads(inside("python3", "-c", source))
    assert [name for found in reached for name, outcome in found.items() if outcome == "reached"] == []
    assert set(open_.values()) == {"reached"}, (open_, "without the walls all are in reach, so the walls were tried")
    assert (await host.destroy("alc_1")).clean
