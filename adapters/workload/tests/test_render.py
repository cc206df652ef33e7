"""Rendering a profile as tasks."""

from typing import Any

import pytest

from mooring_workload.catalog import manifest_of
from mooring_workload.profile import read_profile
from mooring_workload.render import MemberPlacement, NotRenderable, Rendered, render
from tests.support.rows import every_row

CONTAINERS = MemberPlacement("mem_1", "namespace")
BARE = MemberPlacement("mem_1", "namespace", has_containers=False)
PROCESS = MemberPlacement("mem_1", "process")


def rendered(app: str, place: MemberPlacement, config: dict[str, Any] | None = None, **profile: Any) -> Rendered:
    manifest = manifest_of(app)
    manifest["runtime_profile"] = {**manifest["runtime_profile"], **profile}
    return render(read_profile(manifest), config or {}, place)


def test_an_image_is_started_by_its_role_with_its_token_granted_and_never_written_out() -> None:
    made = rendered("jupyter", CONTAINERS)
    start = made.start
    assert (made.runs_as, start.type, start.arguments["image"]) == (
        "container",
        "container.launch",
        {"artifact": "image"},
    )
    assert start.arguments["environment_secrets"] == {"JUPYTER_TOKEN": "access-token"}
    assert "JUPYTER_TOKEN" not in start.arguments["environment"]
    assert start.grants == ({"name": "access-token", "secret": "access-token"},)
    assert [(each.name, each.purpose) for each in made.secrets] == [("access-token", "app_access")]
    assert start.arguments["endpoint"] == {"name": "lab", "port": 8888, "protocol": "http"}
    assert start.arguments["mounts"] == [{"volume": "work", "target": "/work"}]
    assert made.endpoints[0]["path"] == "/lab"


def test_no_task_contains_what_the_launcher_hides() -> None:
    manifest = manifest_of("jupyter")
    fields = {"token": {"type": "string", "writeOnly": True}, "name": {"type": "string"}}
    manifest["config_schema"] = {"type": "object", "properties": fields}
    variables = [{"name": "HUB_TOKEN", "from_config": "token"}, {"name": "HUB_NAME", "from_config": "name"}]
    manifest["runtime_profile"] = {**manifest["runtime_profile"], "env": variables}
    made = render(read_profile(manifest), {"token": "hunter", "name": "hub"}, CONTAINERS)
    assert "hunter" not in repr(made)
    (need,) = made.secrets
    assert (need.purpose, need.value) == ("member_secret", "hunter")
    assert made.start.arguments["environment"]["HUB_NAME"] == "hub"
    assert made.start.arguments["environment_secrets"] == {"HUB_TOKEN": need.name}
    assert made.start.grants == ({"name": need.name, "secret": need.name},)
    assert render(read_profile(manifest), {"name": "hub"}, CONTAINERS).secrets == ()


def test_a_program_without_an_image_is_a_service_on_each_host() -> None:
    sandbox, machine = rendered("hello", CONTAINERS), rendered("hello", PROCESS)
    assert (sandbox.runs_as, machine.runs_as) == ("service", "service")
    assert sandbox.start.arguments["argv"] == ["python3", "/app/program"]
    assert machine.start.arguments["argv"] == ["python3", "./app/program"], "the root is a directory of the machine"
    for made in (sandbox, machine, rendered("hello", BARE)):
        (carried,) = made.prepare
        assert (carried.type, carried.arguments["files"][0]["artifact"]) == ("files.write", "program")


def test_a_large_program_is_fetched_by_a_node_that_can() -> None:
    volume = {"name": "program", "path": "/app", "kind": "artifact", "artifact": "program", "size_bytes": 1 << 20}
    (fetched,) = rendered("hello", CONTAINERS, volumes=[volume]).prepare
    assert (fetched.type, fetched.arguments["destination"]) == ("artifact.fetch", "/app/program")


def test_a_machine_that_shares_its_ports_gives_each_member_its_own() -> None:
    ports = {
        render(read_profile(manifest_of("hello")), {}, MemberPlacement(f"mem_{n}", "process")).ports["http"]
        for n in range(5)
    }
    assert len(ports) == 5
    assert all(20_000 <= each < 32_000 for each in ports)
    made = rendered("hello", PROCESS)
    assert made.start.arguments["environment"]["MOORING_PORT_HTTP"] == str(made.ports["http"])
    assert made.probe is not None
    assert made.probe.arguments["port"] == made.ports["http"] == made.start.arguments["endpoint"]["port"]
    assert rendered("hello", CONTAINERS).ports == {"http": 8080}


@every_row("place", [PROCESS, BARE])
def test_what_needs_an_image_is_refused_where_there_are_no_containers(place: MemberPlacement) -> None:
    with pytest.raises(NotRenderable, match="needs an image") as refused:
        rendered("jupyter", place)
    assert refused.value.code == "config_refused"
    assert place.host in str(refused.value)


def test_a_container_sees_its_artifact_and_its_shared_memory() -> None:
    made = rendered("vllm", CONTAINERS, {"served_model_name": "tiny", "max_num_seqs": 4})
    (fetch,) = made.prepare
    assert fetch.arguments == {"kind": "blob", "artifact": "weights", "volume": "weights", "file": "weights"}
    mounts = {each["target"]: each for each in made.start.arguments["mounts"]}
    assert mounts["/models"] == {"volume": "weights", "target": "/models", "read_only": True}
    assert made.start.arguments["temporary"] == ["/tmp", "/dev/shm"]
    environment = made.start.arguments["environment"]
    assert (environment["SERVED_MODEL_NAME"], environment["MAX_NUM_SEQS"]) == ("tiny", "4")
    assert environment["MAX_MODEL_LEN"] == "8192", "what the launcher leaves out is the schema's default"
    assert made.rounds == 180


def test_bounds_are_those_of_the_manifest() -> None:
    resources = {"cpu_millicores": 1500, "memory_bytes": 1 << 30, "pids_max": 100}
    start = rendered("jupyter", CONTAINERS, resources=resources).start.arguments
    assert (start["cpus"], start["memory_bytes"], start["pids"]) == (1.5, 1 << 30, 100)


def test_values_of_the_configuration_are_texts() -> None:
    env = [{"name": name, "from_config": name} for name in ("yes", "number", "nothing")]
    start = rendered("hello", PROCESS, {"yes": True, "number": 3}, env=env).start.arguments
    assert {name: start["environment"].get(name) for name in ("yes", "number", "nothing")} == {
        "yes": "true",
        "number": "3",
        "nothing": None,
    }


def test_an_exec_probe_of_a_container_is_refused_and_of_a_service_is_run() -> None:
    probes = {"readiness": {"kind": "exec", "command": ["cat", "/app/program"]}}
    with pytest.raises(NotRenderable, match="exec probe"):
        rendered("jupyter", CONTAINERS, probes=probes)
    probe = rendered("hello", PROCESS, probes=probes).probe
    assert probe is not None
    assert (probe.type, probe.arguments["argv"]) == ("probe.exec", ["cat", "./app/program"])


def test_endpoints_at_several_ports_are_refused() -> None:
    manifest = manifest_of("hello")
    manifest["runtime_profile"]["ports"].append({"name": "admin", "port": 9090})
    manifest["endpoints"].append({"name": "admin", "protocol": "http", "port": "admin"})
    with pytest.raises(NotRenderable, match="web, admin"):
        render(read_profile(manifest), {}, CONTAINERS)
