"""The adapter is killed with -9 in the middle of each operation on real Slurm, and another replica goes on to its end.

In `make test` once in each operation, which is asked for again where it was over before anybody killed; in `make soak`
at each of its steps, one after another.
"""

from collections import Counter
from collections.abc import Callable

from mooring_sdk import models
from server.tests.postgres import SOAK
from tests.e2e.slurm.cluster import SKU, VERSIONS, Site, Tenant

PLACEMENT = models.Placement(sku=SKU, gpu_count=1)
ENDED = frozenset({"succeeded", "failed", "cancelled"})
STEPS_MAX, ROUNDS_MAX, STEP = 60, 5, 3
EARLY = {"drain": 1, "reconcile": 1, "remove": 2, "decommission": 2}
"""At which step of the short ones `make test` kills: whoever looks a little late finds them over."""
UNDOES = {"add": "remove", "remove": "add", "upgrade": "rollback", "rollback": "upgrade"}
Start = Callable[[Site, Tenant, str], models.Operation]


def is_reached(place: Site, tenant: Tenant, cluster: str, operation_id: str, steps: int) -> bool:
    """Wait until so many steps of an operation have begun; whether it was still open then."""
    seen = tenant.client.get_operation(tenant.project_id, cluster, operation_id)
    while seen.status not in ENDED:
        if len(seen.steps) >= steps or seen.phase == "platform":
            return seen.phase != "platform"
        seen = tenant.client.get_operation(
            tenant.project_id, cluster, operation_id, wait=20, changed_from=seen.etag
        )  # fmt: skip
    return False


def dies_at(place: Site, tenant: Tenant, cluster: str, operation_id: str, steps: int) -> bool:
    """Kill the adapter at that step, and let another one go on; whether the step was reached."""
    if not is_reached(place, tenant, cluster, operation_id, steps):
        return False
    place.kill_adapters()
    place.start_adapter()
    return True


def jobs_run(place: Site, tenant: Tenant, cluster: str) -> None:
    """Every worker that is ready runs a job, and Slurm knows no other node."""
    workers = place.members(tenant, cluster)
    names = place.slurm(tenant, cluster, "sinfo", "-N", "-h", "-o", "%N").text.split()
    assert sorted(names) == sorted(each.name for each in workers)
    assert {each.status for each in workers} == {"ready"}
    ran = place.slurm(tenant, cluster, "srun", f"-N{len(workers)}", "hostname")
    assert ran.exit_code == 0, ran.text


def _worker(place: Site, tenant: Tenant, cluster: str) -> str:
    return place.members(tenant, cluster)[-1].id


def _drained(place: Site, tenant: Tenant, cluster: str) -> models.Operation:
    return tenant.client.drain_member(tenant.project_id, cluster, _worker(place, tenant, cluster))


def _added(place: Site, tenant: Tenant, cluster: str) -> models.Operation:
    return tenant.client.add_members(tenant.project_id, cluster, component="worker", count=1, placement=PLACEMENT)


def _removed(place: Site, tenant: Tenant, cluster: str) -> models.Operation:
    return tenant.client.remove_member(tenant.project_id, cluster, _worker(place, tenant, cluster))


def _replaced(place: Site, tenant: Tenant, cluster: str) -> models.Operation:
    worker = _worker(place, tenant, cluster)
    return tenant.client.replace_member(tenant.project_id, cluster, worker, surge=True, placement=PLACEMENT)


def _upgraded(place: Site, tenant: Tenant, cluster: str) -> models.Operation:
    return tenant.client.upgrade_instance(tenant.project_id, cluster, version=VERSIONS[1])


def _rolled_back(place: Site, tenant: Tenant, cluster: str) -> models.Operation:
    return tenant.client.rollback_instance(tenant.project_id, cluster)


def _reconciled(place: Site, tenant: Tenant, cluster: str) -> models.Operation:
    return tenant.client.reconcile_instance(tenant.project_id, cluster)


def _repaired(place: Site, tenant: Tenant, cluster: str) -> models.Operation:
    return tenant.client.repair_instance(tenant.project_id, cluster, scope="whole_runtime")


def _restarted(place: Site, tenant: Tenant, cluster: str) -> models.Operation:
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


def test_whenever_the_adapter_dies_another_one_goes_on_to_the_same_end(place: Site, ada: Tenant) -> None:
    """One cluster through every operation, each interrupted; in `make soak` at every step that it has."""
    deaths = _at_every_step(place, ada) if SOAK else _once_in_each(place, ada)
    assert all(deaths[kind] for kind in ("deploy", *(kind for kind, _ in WALK if kind != "reconcile"))), deaths


def _at_every_step(place: Site, ada: Tenant) -> Counter[str]:
    deaths: Counter[str] = Counter()
    for number in range(1, STEPS_MAX):
        cluster = _deployed(place, ada, f"mortal-{number}", number, deaths)
        for kind, start in WALK:
            if deaths[kind] >= number - 1:  # otherwise it has no step of this number
                deaths[kind] += _interrupted(place, ada, cluster, (kind, start), number)
        deaths["decommission"] += _decommissioned(place, ada, cluster, number)
        print(f"step {number}; adapters killed so far, by operation: {dict(deaths)}", flush=True)
        if all(count < number for count in deaths.values()):
            break
    return deaths


def _once_in_each(place: Site, ada: Tenant) -> Counter[str]:
    deaths: Counter[str] = Counter()
    cluster = _deployed(place, ada, "mortal", STEP, deaths)
    for number in range(1, ROUNDS_MAX):
        if not deaths["deploy"]:
            place.stop(ada, cluster)
            cluster = _deployed(place, ada, f"mortal-{number}", STEP, deaths)
    for _ in range(ROUNDS_MAX):
        missed = {kind for kind, _ in WALK if not deaths[kind]}
        for kind, start in WALK:
            if not missed.isdisjoint({kind, UNDOES.get(kind, kind)}):
                deaths[kind] += _interrupted(place, ada, cluster, (kind, start), EARLY.get(kind, STEP))
        if missed <= {"reconcile"}:
            break
    deaths["decommission"] += _decommissioned(place, ada, cluster, EARLY["decommission"])
    return deaths


def _interrupted(place: Site, tenant: Tenant, cluster: str, what: tuple[str, Start], step: int) -> bool:
    """One operation, with a death at that step where it has it; jobs run afterwards all the same."""
    kind, start = what
    operation = start(place, tenant, cluster)
    died = dies_at(place, tenant, cluster, operation.id, step)
    place.over(tenant, cluster, operation.id)
    if kind == "drain":
        _resumed(place, tenant, cluster)
    jobs_run(place, tenant, cluster)
    return died


def _resumed(place: Site, tenant: Tenant, cluster: str) -> None:
    tenant.client.resume_member(tenant.project_id, cluster, _worker(place, tenant, cluster))
    place.until(lambda: place.members(tenant, cluster)[-1].status == "ready", "the resumed worker")


def _deployed(place: Site, tenant: Tenant, name: str, steps: int, deaths: Counter[str]) -> str:
    made = tenant.client.create_instance(
        tenant.project_id, app="slurm", version=VERSIONS[0], name=name, config={},
        topology={"controller": 1, "worker": 2}, placement=PLACEMENT,
    )  # fmt: skip
    (deploy,) = tenant.client.list_operations(tenant.project_id, made.id, kind="deploy").items
    deaths["deploy"] += dies_at(place, tenant, made.id, deploy.id, steps)
    place.running(tenant, made.id)
    jobs_run(place, tenant, made.id)
    return made.id


def _decommissioned(place: Site, tenant: Tenant, cluster: str, steps: int) -> bool:
    stop = tenant.client.stop_instance(tenant.project_id, cluster)
    died = dies_at(place, tenant, cluster, stop.id, steps)
    over = place.instance_until(tenant, cluster, "stopped", "stopped")
    assert over.teardown_proof == "receipts"
    return died
