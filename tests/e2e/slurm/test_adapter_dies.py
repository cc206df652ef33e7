"""The adapter is killed with -9 in the middle of each operation on real Slurm, and another replica goes on to its end.

In `make test` once in each operation, which is asked for again where it was over before anybody killed; in `make soak`
at each of its steps, one after another, and a step that was missed is tried again.
"""

from collections.abc import Callable

from mooring_sdk import models
from server.tests.support.postgres import SOAK
from tests.e2e.slurm.adapter_kills import ClusterSnapshot, KillCoverage, kill_adapter_at_step, reaches
from tests.e2e.slurm.cluster import SKU, VERSIONS, SlurmSite, SlurmTenant
from tests.e2e.slurm.cluster_reads import count_audited

PLACEMENT = models.Placement(sku=SKU, gpu_count=1)
BEGUN = ClusterSnapshot(
    VERSIONS[0], "healthy", {("controller", "ready", VERSIONS[0]): 1, ("worker", "ready", VERSIONS[0]): 2}
)
TURNS_MAX = 40 if SOAK else 5
STEP = 3
EARLY = {"drain": 1, "reconcile": 1, "remove": 2, "decommission": 1}
"""At which step of the short ones `make test` kills: a test that looks a little late finds them finished."""
UNDOES = {"add": "remove", "remove": "add", "upgrade": "rollback", "rollback": "upgrade"}
Start = Callable[[SlurmSite, SlurmTenant, str], models.Operation]


def jobs_run(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> None:
    """Every worker that is ready runs a job, and Slurm knows no other node."""
    workers = place.members(tenant, cluster)
    names = place.slurm(tenant, cluster, "sinfo", "-N", "-h", "-o", "%N").text.split()
    assert sorted(names) == sorted(each.name for each in workers)
    assert {each.status for each in workers} == {"ready"}
    ran = place.slurm(tenant, cluster, "srun", f"-N{len(workers)}", "hostname")
    assert ran.exit_code == 0, ran.text


def _worker(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> str:
    return place.members(tenant, cluster)[-1].id


def _drained(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> models.Operation:
    return tenant.client.drain_member(tenant.project_id, cluster, _worker(place, tenant, cluster))


def _added(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> models.Operation:
    return tenant.client.add_members(tenant.project_id, cluster, component="worker", count=1, placement=PLACEMENT)


def _removed(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> models.Operation:
    return tenant.client.remove_member(tenant.project_id, cluster, _worker(place, tenant, cluster))


def _replaced(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> models.Operation:
    worker = _worker(place, tenant, cluster)
    return tenant.client.replace_member(tenant.project_id, cluster, worker, surge=True, placement=PLACEMENT)


def _upgraded(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> models.Operation:
    return tenant.client.upgrade_instance(tenant.project_id, cluster, version=VERSIONS[1])


def _rolled_back(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> models.Operation:
    return tenant.client.rollback_instance(tenant.project_id, cluster)


def _reconciled(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> models.Operation:
    return tenant.client.reconcile_instance(tenant.project_id, cluster)


def _repaired(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> models.Operation:
    return tenant.client.repair_instance(tenant.project_id, cluster, scope="whole_runtime")


def _restarted(place: SlurmSite, tenant: SlurmTenant, cluster: str) -> models.Operation:
    return tenant.client.restart_instance(tenant.project_id, cluster)


WALK: tuple[tuple[str, Start], ...] = (
    ("add", _added),
    ("drain", _drained),
    ("remove", _removed),
    ("replace", _replaced),
    ("upgrade", _upgraded),
    ("rollback", _rolled_back),
    ("reconcile", _reconciled),
    ("repair", _repaired),
    ("restart", _restarted),
)


def test_whenever_the_adapter_dies_another_one_goes_on_to_the_same_end(place: SlurmSite, ada: SlurmTenant) -> None:
    """A cluster through every operation, each interrupted; in `make soak` at every step that it has."""
    kinds = ("deploy", *(kind for kind, _ in WALK), "decommission")
    rows = {kind: KillCoverage(None if SOAK else EARLY.get(kind, STEP)) for kind in kinds}
    cluster = _deployed(place, ada, "mortal", rows["deploy"])
    for _ in range(TURNS_MAX):
        missed = {kind for kind, _ in WALK if rows[kind].wanted}
        for kind, start in WALK:
            if not missed.isdisjoint({kind, UNDOES.get(kind, kind)}):
                _interrupted(place, ada, cluster, rows[kind], kind=kind, start=start)
        if not missed:
            break
    _decommissioned(place, ada, cluster, rows["decommission"])
    for number in range(TURNS_MAX):
        if rows["deploy"].wanted or rows["decommission"].wanted:
            another = _deployed(place, ada, f"mortal-{number}", rows["deploy"])
            _decommissioned(place, ada, another, rows["decommission"])
    shown = "\n".join(f"{kind}: {row}" for kind, row in rows.items())
    print(f"adapters killed, by operation and by the step that had begun:\n{shown}", flush=True)
    assert {kind: row.wanted for kind, row in rows.items() if row.wanted} == {}, shown
    assert set(count_audited(ada, cluster)) == {*kinds, "resume"}


def _interrupted(
    place: SlurmSite, tenant: SlurmTenant, cluster: str, row: KillCoverage, *, kind: str, start: Start
) -> None:
    """One operation, with a death where one is wanted; its end is the same, and jobs run."""
    before, aim = ClusterSnapshot.of(tenant, cluster), row.aim
    operation = start(place, tenant, cluster)
    killed_at = kill_adapter_at_step(place, tenant, cluster, operation.id, aim)
    over = place.over(tenant, cluster, operation.id)
    row.note(aim, killed_at, over.steps)
    reaches(place, tenant, cluster, before.after(kind))
    if kind == "drain":
        tenant.client.resume_member(tenant.project_id, cluster, _worker(place, tenant, cluster))
        reaches(place, tenant, cluster, before)
    jobs_run(place, tenant, cluster)


def _deployed(place: SlurmSite, tenant: SlurmTenant, name: str, row: KillCoverage) -> str:
    aim = row.aim
    made = tenant.client.create_instance(
        tenant.project_id,
        app="slurm",
        version=VERSIONS[0],
        name=name,
        config={},
        topology={"controller": 1, "worker": 2},
        placement=PLACEMENT,
    )
    (deploy,) = tenant.client.list_operations(tenant.project_id, made.id, kind="deploy").items
    killed_at = kill_adapter_at_step(place, tenant, made.id, deploy.id, aim)
    row.note(aim, killed_at, place.over(tenant, made.id, deploy.id).steps)
    reaches(place, tenant, made.id, BEGUN)
    jobs_run(place, tenant, made.id)
    return made.id


def _decommissioned(place: SlurmSite, tenant: SlurmTenant, cluster: str, row: KillCoverage) -> None:
    aim = row.aim
    members = list(tenant.client.iter_members(tenant.project_id, cluster, limit=100))
    stop = tenant.client.stop_instance(tenant.project_id, cluster)
    killed_at = kill_adapter_at_step(place, tenant, cluster, stop.id, aim)
    row.note(aim, killed_at, place.over(tenant, cluster, stop.id).steps)
    over = place.instance_until(tenant, cluster, "stopped", "stopped")
    assert over.teardown_proof == "receipts"
    assert ClusterSnapshot.of(tenant, cluster).members == {}
    for each in members:
        if each.owns_allocation and each.allocation_id is not None:
            place.released(tenant, each.allocation_id)
