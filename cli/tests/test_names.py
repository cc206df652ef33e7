"""Names: prefixes, hints, the living before the stopped, names where ids were needed, and completion in a shell."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from cli.tests.support.fake_platform import PROJECT, TENANT, CannedResponse, FakeCliPlatform, page, problem, whoami
from mooring_cli.contexts import Context, Contexts, contexts_file, save
from tests.support.rows import every_row

Run = Callable[..., Result]
Spawn = Callable[..., "subprocess.Popen[str]"]
AT = f"/api/v1/projects/{PROJECT}"
OLD, NEW, HPC = ("ins_01m7prhrvd41zagasgcy65nsw1", "ins_01m7prhrvd41zagasgcy65nsw2", "ins_02m7prhrvd41zagasgcy65nsw3")


@pytest.fixture(autouse=True)
def three_instances(environment: dict[str, str], platform: FakeCliPlatform) -> None:
    environment["MOORING_PROJECT"] = PROJECT
    rows = [an_instance(OLD, "greeter", "stopped"), an_instance(NEW, "greeter"), an_instance(HPC, "hpc")]
    platform.on("GET", f"{AT}/app-instances", page(*rows))
    for row in rows:
        platform.on("GET", f"{AT}/app-instances/{row['id']}", CannedResponse(body=row))


def an_instance(id: str, name: str, status: str = "running") -> dict[str, Any]:
    return {"id": id, "name": name, "status": status, "health": "healthy"}


@every_row(
    ("given", "meant"),
    [("greeter", NEW), ("gree", NEW), ("h", HPC), ("ins_02", HPC), (OLD, OLD), (NEW, NEW)],
)
def test_a_name_means_the_living_one_and_a_unique_prefix_is_enough(
    run: Run, platform: FakeCliPlatform, given: str, meant: str
) -> None:
    assert run("instances", "get", given, "-o", "json").exit_code == 0
    assert platform.asked[-1].path == f"{AT}/app-instances/{meant}"


@every_row(
    ("given", "said"),
    [
        ("gretter", "there is no instance 'gretter' here; did you mean greeter?"),
        ("nothing-like-it", "there is no instance 'nothing-like-it' here"),
        ("ins_0", "'ins_0' could be greeter, hpc; give more of it"),
    ],
)
def test_a_name_that_means_nothing_or_too_much_gets_a_hint(run: Run, given: str, said: str) -> None:
    for words in (["instances", "get", given], ["instances", "watch", given], ["logs", given]):
        result = run(*words)
        assert (result.exit_code, result.stderr.splitlines()[0]) == (4, f"error: {said}")


def test_what_deletes_takes_whole_names(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("DELETE", f"{AT}/app-instances/{NEW}", CannedResponse(202, {"id": "op_1"}))
    result = run("instances", "delete", "gree", "--yes")
    assert (result.exit_code, "did you mean greeter?" in result.stderr) == (4, True)
    assert platform.of("DELETE") == []
    assert run("instances", "delete", "greeter", "--yes").exit_code == 0


def test_projects_and_tenants_have_prefixes_and_hints_too(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"{AT}/tasks", page())
    assert run("tasks", "list", "--project", "vis").exit_code == 0
    assert "did you mean vision?" in run("tasks", "list", "--project", "visoin").stderr
    assert "did you mean acme?" in run("users", "list", "--tenant", "acne").stderr


def test_names_are_taken_where_ids_were_needed(run: Run, platform: FakeCliPlatform) -> None:
    box = {"id": "alc_1", "name": "box", "status": "active"}
    platform.on("GET", f"{AT}/allocations", page(box))
    platform.on("GET", f"{AT}/allocation-groups", page({"id": "grp_1", "name": "pair", "status": "active"}))
    platform.on("GET", f"{AT}/tasks", page())
    platform.on("GET", f"{AT}/allocation-groups/grp_1", CannedResponse(body={"id": "grp_1"}))
    platform.on("POST", f"{AT}/app-instances/{HPC}/members", CannedResponse(202, {"id": "op_1", "status": "accepted"}))
    assert run("tasks", "list", "--instance", "greeter", "--allocation", "box").exit_code == 0
    assert platform.asked[-1].query["instance_id"] == NEW
    assert platform.asked[-1].query["allocation_id"] == "alc_1"
    assert run("allocation-groups", "get", "pair").exit_code == 0
    assert run("instances", "members", "add", "hpc", "--component", "worker", "--allocation", "box").exit_code == 0
    assert platform.of("POST")[0].body["placement"] == {"allocations": ["alc_1"]}


def test_a_membership_is_named_by_its_user(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"/api/v1/tenants/{TENANT}/users", page({"id": "usr_2", "email": "bob@acme.test"}))
    platform.on("GET", f"{AT}/memberships", page({"id": "mbr_1", "user_id": "usr_2", "role": "project_viewer"}))
    platform.on("DELETE", f"{AT}/memberships/mbr_1", CannedResponse(204))
    assert run("memberships", "delete", "bob@acme.test", "--yes").exit_code == 0


def test_the_options_of_a_placement_have_one_spelling_everywhere(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("POST", f"{AT}/app-instances/{HPC}/members", CannedResponse(202, {"id": "op_1", "status": "accepted"}))
    words = ["instances", "members", "add", "hpc", "--component", "worker"]
    for options in (["--sku", "slice", "--gpu-count", "1"], ["--placement-sku", "slice", "--placement-gpu-count", "1"]):
        assert run(*words, *options).exit_code == 0
        assert platform.of("POST")[-1].body["placement"] == {"sku": "slice", "gpu_count": 1}


# Completion ---------------------------------------------------------------------------------------------------------


def completed(spawn: Spawn, *words: str, **environment: str) -> list[str]:
    """What bash offers for the last word."""
    line = " ".join(("mooring", *words))
    extra = {"_MOORING_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words)), **environment}
    out, err = spawn(**extra).communicate(timeout=120)
    assert err == ""
    return [each.partition(",")[2] for each in out.split()]


def test_a_shell_completes_names_contexts_and_choices(
    spawn: Spawn, platform: FakeCliPlatform, environment: dict[str, str]
) -> None:
    save(contexts_file(environment), Contexts(None, {name: Context(name) for name in ("acme-admin", "other")}))
    members = page({"id": "mem_1", "name": "hpc-worker-0", "status": "ready"}, {"id": "mem_2", "status": "removed"})
    platform.on("GET", f"{AT}/app-instances/{HPC}/members", members)
    platform.on("GET", "/api/v1/skus", page({"id": "sku_1", "slug": "slice"}))
    platform.on("GET", "/api/v1/apps/catalog", page({"app_id": "app_1", "slug": "hello"}))
    offers = {
        ("instances", "get", ""): ["greeter", "hpc"],
        ("instances", "stop", "g"): ["greeter"],
        ("instances", "members", "drain", "hpc", ""): ["hpc-worker-0"],
        ("logs", "h"): ["hpc"],
        ("--context", "a"): ["acme-admin"],
        ("projects", "get", "v"): ["vision"],
        ("tasks", "list", "--project", ""): ["vision"],
        ("instances", "launch", "hello", "--sku", ""): ["slice"],
        ("instances", "list", "--status", "st"): ["starting", "stopped", "stopping"],
        ("-o", "w"): ["wide"],
    }
    for words, expected in offers.items():
        assert completed(spawn, *words) == expected, words


def test_a_shell_gets_nothing_and_no_error_if_the_server_cannot_be_asked(
    spawn: Spawn, platform: FakeCliPlatform
) -> None:
    platform.on("GET", f"{AT}/app-instances", problem(500, "internal"))
    assert completed(spawn, "instances", "get", "") == []
    assert completed(spawn, "instances", "get", "", MOORING_URL="http://127.0.0.1:9") == []
    platform.on("GET", "/api/v1/whoami", CannedResponse(body=whoami(tenant_id=None)))
    assert completed(spawn, "instances", "get", "", MOORING_TOKEN="") == []
