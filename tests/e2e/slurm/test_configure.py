"""The configuration of a real cluster is changed while it runs."""

from typing import Any

from mooring_sdk import models
from tests.e2e.slurm.cluster import SKU, SlurmSite, SlurmTenant
from tests.e2e.slurm.test_cluster import began, let_go, waiting

QUEUES = [{"name": "main", "default": True}]


def test_queues_change_under_a_running_job_and_workers_get_another_size(place: SlurmSite, ada: SlurmTenant) -> None:
    cluster = place.launch(ada, "changing", workers=1, config={"partitions": QUEUES}).id
    (worker,) = place.members(ada, cluster)

    def update(wanted: str = "succeeded", **config: Any) -> Any:
        asked = ada.client.update_instance(ada.project_id, cluster, config=config)
        return place.over(ada, cluster, asked.id, wanted)

    # A second queue with a limit, while a job runs.
    job = began(place, ada, cluster, *waiting())
    night = {"name": "night", "max_minutes": 60}
    assert update(partitions=[*QUEUES, night]).evidence["applied_by"] == "reload"
    shown = place.slurm(ada, cluster, "scontrol", "-o", "show", "partition", "night").text
    assert "MaxTime=01:00:00" in shown
    assert job in place.slurm(ada, cluster, "squeue", "-h", "-o", "%i").text.split()
    assert place.slurm(ada, cluster, "sinfo", "-h", "-p", "night", "-o", "%D").text.strip() == "1"

    # A worker that comes later is in the new queue too.
    placement = models.Placement(sku=SKU, gpu_count=2)
    added = ada.client.add_members(ada.project_id, cluster, component="worker", count=1, placement=placement)
    place.over(ada, cluster, added.id)
    nodes = place.slurm(ada, cluster, "sinfo", "-h", "-p", "night", "-o", "%D").text.split()
    assert sum(map(int, nodes)) == 2

    # What cannot change says why; a worker with a job keeps its size, and without one it is registered again.
    refused = update("failed", accounting=True)
    assert (refused.failure_code, "launch a new cluster" in refused.failure_detail) == ("config_refused", True)
    assert f"jobs {job} run" in update("failed", cpus_per_worker=1).failure_detail
    assert ada.client.get_instance(ada.project_id, cluster).config == {"partitions": [*QUEUES, night]}
    let_go(place, ada, worker)
    place.until(lambda: not place.slurm(ada, cluster, "squeue", "-h").text.strip(), "the end of the job")
    assert update(cpus_per_worker=1, users=["app", "ada"]).evidence["applied_by"] == "restart"
    assert "CPUTot=1 " in place.slurm(ada, cluster, "scontrol", "-o", "show", "node", worker.name).text
    assert place.slurm(ada, cluster, "srun", "--quiet", "-p", "night", "id", "-un").text.strip() == "app"
    assert place.inside(ada, worker, "id", "-u", "ada").exit_code == 0
    place.stop(ada, cluster)
