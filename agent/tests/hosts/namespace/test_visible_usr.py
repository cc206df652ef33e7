"""A sandbox sees a named part of the machine's /usr."""

import json
import os
from pathlib import Path

import pytest

from agent.tests.support.namespace_sandboxes import Inside, spec_of
from mooring_agent.hosts.contract import FileSpec, HostFailure, Isolation, Owner
from mooring_agent.hosts.namespace import NamespaceHost, visible_usr
from mooring_agent.inventory import programs
from tests.support.rows import every_row

pytestmark = pytest.mark.anyio

MEMBER = Owner("alc_1", "member")
LOOK = """
import json, os, ssl, sqlite3, subprocess
found = {place: sorted(os.listdir(place)) for place in ("/usr", "/usr/local") if os.path.isdir(place)}
for path in ("/usr/new", "/usr/local/new", "/usr/bin/new"):
    try:
        os.mkdir(path)
        found[path] = "made"
    except OSError as problem:
        found[path] = problem.errno
try:
    os.rename("/usr", "/usr2")
    found["rename"] = "done"
except OSError as problem:
    found["rename"] = problem.errno
print(json.dumps(found))
"""


@pytest.mark.parametrize("isolation", ["user_namespace", "bounded"])
async def test_what_administrators_put_below_usr_is_not_in_a_sandbox(host: NamespaceHost, isolation: Isolation) -> None:
    await host.create(spec_of("alc_1", isolation=isolation))
    found = json.loads(await Inside(host, MEMBER).python(LOOK))
    listed = {Path(each).relative_to("/usr").parts for each in (*visible_usr.PACKAGES, "/usr/local/x")}
    assert set(found["/usr"]) <= {parts[0] for parts in listed}
    assert {"bin", "lib", "share"} <= set(found["/usr"])
    assert [name for name in found.get("/usr/local", []) if not name.startswith(("cuda", "nvidia", "share"))] == []
    assert set(os.listdir("/usr/local")) - set(found.get("/usr/local", [])), "the machine has more than it sees"
    # Read-only as a whole, and it stays where it is.
    assert (found["/usr/new"], found["/usr/local/new"], found["/usr/bin/new"], found["rename"]) == (30, 30, 30, 16)
    with pytest.raises(HostFailure, match="permission_denied"):
        await host.write_files(MEMBER, [FileSpec("/usr/local/bin/x", b"x")])


async def test_an_operator_adds_a_directory_of_usr(tmp_path: Path) -> None:
    host = NamespaceHost(tmp_path / "state", "nod_test", added_usr=visible_usr.parse(["/usr/local"]))
    await host.create(spec_of("alc_1"))
    try:
        found = json.loads(await Inside(host, MEMBER).python(LOOK))
        assert found["/usr/local"] == sorted(os.listdir("/usr/local"))
        assert found["/usr/local/new"] == 30
    finally:
        assert (await host.destroy("alc_1")).clean


@every_row("path", ["/", "/usr", "/etc", "/usr/../etc", "/usr/local/", "usr/local", "/usr/absent", "/usr/bin/env"])
def test_only_a_directory_below_usr_can_be_added(path: str) -> None:
    with pytest.raises(ValueError, match="--sandbox-usr"):
        visible_usr.parse([path])


def test_a_program_that_no_sandbox_sees_is_no_fact_of_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("mooring-slurmd", "podman")
    for name in names:
        (tmp_path / name).write_text("#!/bin/sh\necho 1.0\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set(programs(names)) == set(names)
    assert set(programs(names, is_visible=lambda path: False)) == {"podman"}
    usr = visible_usr.find()
    assert usr.contains("/usr/bin/env")
    assert not usr.contains("/usr/local/sbin/slurmd")
    assert usr.contains("/bin/sh"), "also by another name"
    assert not usr.contains("/opt/slurm/sbin/slurmd")
