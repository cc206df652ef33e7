"""Renders Slurm's configuration files: values in, text out.

Every member has its own slurm.conf, because it contains the member's paths and ports. What has to be the same
everywhere is the same, and `NO_CONF_HASH` makes Slurm not compare the whole files. Workers are dynamic nodes (`slurmd
-Z`): no file names them, so that adding a worker changes nothing on the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mooring_slurm.launch_config import LaunchConfig, Partition
from mooring_slurm.layout import MemberHome

NODES_MAX: Final = 1_024
DATABASE: Final = "slurm_acct"
PRIVATE: Final = "accounts,jobs,usage,users"
"""What users cannot see of each other in a cluster of several projects."""
MEMORY_PART: Final = 0.9
"""The part of an allocation's memory that jobs get; the daemons use the rest."""
MEMORY_MIB_LEAST: Final = 64

JOB_COLUMNS: Final = (
    "NumNodes",
    "NumTasks",
    "tres-alloc",
    "tres-per-job",
    "tres-per-node",
    "tres-per-socket",
    "tres-per-task",
)
"""The columns that are recorded of an ended job, in this order: none contains a space, and an unknown one is `N/A`."""
COLUMN_WIDTH: Final = 1_000
NO_TASK: Final = 4_294_967_294

SAME_EVERYWHERE: Final = (
    "SelectType=select/cons_tres",
    "SelectTypeParameters=CR_Core_Memory",
    "ProctrackType=proctrack/linuxproc",
    "TaskPlugin=task/none",
    "MpiDefault=none",
    "PropagateResourceLimits=NONE",
    "GresTypes=gpu",
    f"MaxNodeCount={NODES_MAX}",
    "TreeWidth=65533",
    "DefMemPerCPU=64",
    "ReturnToService=2",
    "JobRequeue=0",
    "MinJobAge=3600",
    "MaxJobCount=10000",
    "SlurmdTimeout=30",
    "SlurmctldTimeout=30",
    "MessageTimeout=10",
    "KillWait=5",
    "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1",
    "DebugFlags=NO_CONF_HASH",
)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What all members of an instance have in common."""

    name: str  # see `cluster_name`
    controller_host: str  # the host name of the controller's sandbox
    controller_address: str
    controller_port: int
    database_port: int
    worker_port: int  # of all workers: the controller assumes the port of its own file
    config: LaunchConfig
    is_shared: bool = False  # projects are attached, and each sees only its own jobs


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """The resources that one worker offers."""

    name: str
    cpus: int
    memory_mib: int
    gpus: tuple[int, ...]  # the numbers N of the devices /dev/nvidiaN in its sandbox


def cluster_name(instance_id: str) -> str:
    """The cluster's name in Slurm: the instance's id, because the accounting database requires a constant name."""
    return instance_id.lower()


def worker_share(facts: Mapping[str, Any], gpu_count: int, whole: bool) -> tuple[int, int]:
    """The cores and the MiB that a worker offers, by its allocation's share of the machine.

    A job takes at least one core, so a GPU without a core would be idle: there are at least as many cores as GPUs, if
    the machine has them.
    """
    gpus, cores = int(facts.get("gpu_count") or 0), int(facts.get("cpus") or 1)
    share = 1.0 if whole or not gpus else min(1.0, gpu_count / gpus)
    cpus = max(1, int(cores * share), min(gpu_count, cores))
    memory = int(float(facts.get("memory_gib") or 1) * 1_024 * share * MEMORY_PART)
    return cpus, max(MEMORY_MIB_LEAST, memory)


def slurm_conf(cluster: ClusterSettings, home: MemberHome) -> str:
    """The slurm.conf of one member, with its own paths."""
    config = cluster.config
    lines = [
        f"ClusterName={cluster.name}",
        f"SlurmctldHost={cluster.controller_host}({cluster.controller_address})",
        f"SlurmctldPort={cluster.controller_port}",
        f"SlurmdPort={cluster.worker_port}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={home.munge_socket}",
        "CredType=cred/munge",
        f"StateSaveLocation={home.below('state')}",
        f"SlurmdSpoolDir={home.below('spool')}",
        f"SlurmctldPidFile={home.below('run', 'slurmctld.pid')}",
        f"SlurmdPidFile={home.below('run', 'slurmd.pid')}",
        *SAME_EVERYWHERE,
        "JobCompType=jobcomp/script",
        f"JobCompLoc={home.job_over}",
        *_accounting(cluster, home),
        *([f"PrivateData={PRIVATE}"] if cluster.is_shared else []),
        *(_partition(each) for each in config.partitions),
    ]
    return _text(lines)


def job_over(home: MemberHome) -> str:
    """The script that the controller runs when an attempt of a job ends: it appends a line with the job's resources.

    All values come from Slurm's environment variables. Nothing that users name is written, except for a validated
    account name.
    """
    columns = ",".join(f"{name}:{COLUMN_WIDTH}" for name in JOB_COLUMNS)
    return f"""#!/bin/sh
umask 077
[ -n "$NODES" ] || exit 0
job=$JOBID
[ "$ARRAYTASKID" = {NO_TASK} ] || job=${{ARRAYJOBID}}_$ARRAYTASKID
case $ACCOUNT in "" | *[!A-Za-z0-9._-]*) ACCOUNT=- ;; esac
export SLURM_CONF={home.slurm_conf}
IFS= read -r columns <<END
$(timeout 10 squeue --noheader --states=all --jobs="$job" --Format={columns})
END
set -f
set -- $columns
printf '%s\\n' "$JOBID $START $END $JOBSTATE $ACCOUNT $*" >> {home.below("log", "ended")}
"""


def gres_conf(worker: WorkerResources, gpu_type: str) -> str:
    """The devices of one worker, each by its file: with a count alone every job would get the same ones."""
    lines = ["AutoDetect=off"]
    lines += [f"NodeName={worker.name} Name=gpu Type={gpu_type} File=/dev/nvidia{number}" for number in worker.gpus]
    return _text(lines)


def cgroup_conf() -> str:
    """No control groups: a sandbox has no cgroup file system, and its limits are enforced from outside."""
    return _text(["CgroupPlugin=cgroup/v1", "CgroupAutomount=no"])


def slurmdbd_conf(cluster: ClusterSettings, home: MemberHome) -> str:
    """The accounting daemon's file. It uses the database's socket as root of the sandbox, without a password."""
    return _text(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={home.munge_socket}",
            f"DbdHost={cluster.controller_host}",
            f"DbdAddr={cluster.controller_address}",
            f"DbdPort={cluster.database_port}",
            "SlurmUser=root",
            f"PidFile={home.below('run', 'slurmdbd.pid')}",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=root",
            f"StorageLoc={DATABASE}",
            *([f"PrivateData={PRIVATE}"] if cluster.is_shared else []),
        ]
    )


def mariadb_conf(home: MemberHome) -> str:
    """The database's file: small, and reachable only by its socket."""
    return _text(
        [
            "[mariadbd]",
            f"datadir={home.below('database', 'data')}",
            f"tmpdir={home.below('database')}",
            f"socket={home.database_socket}",
            f"pid-file={home.below('run', 'mariadbd.pid')}",
            "user=root",
            "skip-networking",
            "skip-log-bin",
            "innodb_buffer_pool_size=64M",
            "innodb_log_file_size=8M",
            "innodb_lock_wait_timeout=900",
            "innodb_flush_log_at_trx_commit=2",  # commits are in the kernel: only a crash of the machine loses them
            "max_connections=50",
            "[client]",
            f"socket={home.database_socket}",
        ]
    )


def worker_words(worker: WorkerResources, gpu_type: str) -> str:
    """The resources with which a dynamic node registers."""
    words = [f"CPUs={worker.cpus}", f"RealMemory={worker.memory_mib}"]
    if worker.gpus:
        words.append(f"Gres=gpu:{gpu_type}:{len(worker.gpus)}")
    return " ".join(words)


def _accounting(cluster: ClusterSettings, home: MemberHome) -> list[str]:
    if not cluster.config.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={cluster.controller_address}",
        f"AccountingStoragePort={cluster.database_port}",
        f"AccountingStoragePass={home.munge_socket}",  # with munge this is the path of its socket
        "AccountingStorageTRES=gres/gpu",
        "AccountingStorageEnforce=associations,limits",
        "AccountingStoreFlags=job_comment",
        "JobAcctGatherType=jobacct_gather/linux",
    ]


def _partition(partition: Partition) -> str:
    longest = f" MaxTime={partition.max_minutes}" if partition.max_minutes else ""
    return f"PartitionName={partition.name} Nodes=ALL Default={'YES' if partition.default else 'NO'} State=UP{longest}"


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
