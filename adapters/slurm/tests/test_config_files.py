"""Slurm's rendered files, each compared as a whole, so that no change goes unnoticed."""

import re
from dataclasses import replace
from pathlib import Path

from mooring_slurm import daemons, layout
from mooring_slurm.config_files import (
    JOB_COLUMNS,
    ClusterSettings,
    WorkerResources,
    cgroup_conf,
    cluster_name,
    gres_conf,
    job_over,
    mariadb_conf,
    slurm_conf,
    slurmdbd_conf,
    worker_share,
    worker_words,
)
from mooring_slurm.launch_config import LaunchConfig, Partition
from mooring_slurm.layout import MemberHome
from mooring_slurm.slurm_node.job_completions import COLUMNS
from tests.support.rows import every_row

GOLDEN = Path(__file__).parent / "golden"
HOME = MemberHome("hpc-controller-0")
PLAIN = LaunchConfig(gpu_type="a100")
FULL = LaunchConfig(
    partitions=(Partition("main", default=True), Partition("short", max_minutes=30)),
    accounting=True,
    users=("alice", "bob"),
    gpu_type="a100",
)
WORKER = WorkerResources("hpc-worker-0", cpus=8, memory_mib=4_096, gpus=(2, 3, 5))


def cluster(config: LaunchConfig) -> ClusterSettings:
    return ClusterSettings(
        name=cluster_name("INS_ABC"),
        controller_host="alc-one",
        controller_address="10.64.0.2",
        controller_port=21_003,
        database_port=21_004,
        worker_port=21_005,
        config=config,
    )


RENDERED = {
    "slurm-plain.conf": slurm_conf(cluster(PLAIN), HOME),
    "slurm-accounting.conf": slurm_conf(cluster(FULL), MemberHome("hpc-worker-0")),
    "gres.conf": gres_conf(WORKER, "a100"),
    "cgroup.conf": cgroup_conf(),
    "slurmdbd.conf": slurmdbd_conf(cluster(FULL), HOME),
    "mariadb.conf": mariadb_conf(HOME),
    "job_over": job_over(HOME),
}


@every_row("name", sorted(RENDERED))
def test_a_file_is_what_it_was(name: str) -> None:
    assert RENDERED[name] == (GOLDEN / name).read_text(encoding="utf-8")


def test_files_of_two_members_differ_in_their_paths_alone() -> None:
    one, two = slurm_conf(cluster(FULL), HOME), slurm_conf(cluster(FULL), MemberHome("hpc-worker-0"))
    assert one.replace("hpc-controller-0", "hpc-worker-0") == two
    assert one != two


def test_what_users_see_of_each_other_is_their_own_where_projects_are_attached() -> None:
    shared = replace(cluster(FULL), is_shared=True)
    for text in (slurm_conf(shared, HOME), slurmdbd_conf(shared, HOME)):
        assert "PrivateData=accounts,jobs,usage,users" in text.splitlines()
    assert "PrivateData" not in slurm_conf(cluster(FULL), HOME), "people of one project see the whole queue"


def test_every_path_is_below_the_members_own_home() -> None:
    for name, text in RENDERED.items():
        found = set(re.findall(r"(?<![\w/])/[\w./-]+", text))
        assert all(each.startswith(("/srv/slurm/hpc-", "/dev/nvidia", "/bin/sh")) for each in found), name


def test_a_worker_tells_what_it_has() -> None:
    assert worker_words(WORKER, "a100") == "CPUs=8 RealMemory=4096 Gres=gpu:a100:3"
    assert worker_words(WorkerResources("w", 1, 64, ()), "a100") == "CPUs=1 RealMemory=64"


def test_a_worker_without_gpus_has_no_device() -> None:
    assert gres_conf(WorkerResources("w", 1, 64, ()), "a100") == "AutoDetect=off\n"


@every_row(
    ("facts", "gpus", "whole", "cpus", "memory_mib"),
    [
        ({"cpus": 16, "memory_gib": 64, "gpu_count": 8}, 2, False, 4, 14_745),
        ({"cpus": 16, "memory_gib": 64, "gpu_count": 8}, 2, True, 16, 58_982),
        ({"cpus": 2, "memory_gib": 1, "gpu_count": 8}, 1, False, 1, 115),
        ({"cpus": 4, "memory_gib": 8}, 0, False, 4, 7_372),
        ({"cpus": 2, "memory_gib": 23, "gpu_count": 16}, 2, False, 2, 2_649),
        ({}, 1, False, 1, 921),
    ],
)
def test_a_worker_offers_its_share_of_the_machine(
    facts: dict[str, int], gpus: int, whole: bool, cpus: int, memory_mib: int
) -> None:
    assert worker_share(facts, gpus, whole) == (cpus, memory_mib)


def test_services_are_started_with_the_members_own_files() -> None:
    words = daemons.slurmd(MemberHome("hpc-worker-0"), WORKER, "a100")
    assert words.argv[:3] == ("sh", "-c", daemons.with_controller())
    assert words.argv[3:10] == (
        "slurmd",
        "-D",
        "-Z",
        "-N",
        "hpc-worker-0",
        "-f",
        "/srv/slurm/hpc-worker-0/etc/slurm.conf",
    )
    assert words.environment == {"SLURM_CONF": "/srv/slurm/hpc-worker-0/etc/slurm.conf"}
    assert daemons.slurmdbd(HOME).environment["MYSQL_UNIX_PORT"] == HOME.database_socket
    assert daemons.mariadbd(HOME).argv[-1] == "serve-database"
    for daemon in (daemons.munged(HOME), daemons.slurmctld(HOME), words):
        assert daemon.arguments()["restart"]["policy"] == "on_failure"


def test_ports_are_those_of_the_instance_and_differ() -> None:
    ports = {kind("ins_one") for kind in (layout.controller_port, layout.database_port, layout.worker_port)}
    assert len(ports) == 3
    assert all(layout.FIRST_PORT <= each < layout.FIRST_PORT + layout.PORTS for each in ports)
    assert layout.controller_port("ins_one") != layout.controller_port("ins_two")


def test_keys_and_the_state_are_shut() -> None:
    modes = dict(layout.modes(accounting=True, controller=True))
    assert {name for name, mode in modes.items() if mode == "0700"} == {"key", "database", "state"}
    assert {"state", "database", "submits"}.isdisjoint(dict(layout.modes(accounting=True, controller=False)))
    assert "database" not in dict(layout.modes(accounting=False, controller=True))


def test_what_is_written_of_a_job_is_read_in_the_same_order() -> None:
    assert [each.lower().replace("-", "_") for each in JOB_COLUMNS] == [
        {"node_count": "numnodes", "tasks": "numtasks", "tres_alloc_str": "tres_alloc"}.get(each, each)
        for each in COLUMNS
    ]
