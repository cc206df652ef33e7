"""The short walk on real Slurm that `make test` takes: deploy, srun, add, drain, remove, stop.
While it goes on the instance is read again and again, and each moment must be what its replay shows.

`test_cluster.py` walks the same way with jobs under way, GPUs, refusals and a look at what is left on the machine.
"""

from mooring_sdk import models
from tests.e2e.slurm.cluster import SKU, SlurmSite, SlurmTenant
from tests.e2e.slurm.replay_recorder import recorded


def test_a_cluster_is_deployed_used_grown_shrunk_and_stopped_and_replayed(place: SlurmSite, ada: SlurmTenant) -> None:
    cluster = place.launch(ada, "walk", workers=1).id
    with recorded(ada, cluster, place.mooring.url) as recorder:
        walk(place, ada, cluster)
    assert len(recorder.live) >= 5
    print(f"{len(recorder.live)} of {len(set(recorder.moments()))} moments were read live")
    assert recorder.differences() == []


def walk(place: SlurmSite, ada: SlurmTenant, cluster: str) -> None:
    (first,) = place.members(ada, cluster)
    assert place.slurm(ada, cluster, "srun", "--quiet", "printenv", "SLURMD_NODENAME").lines == [first.name]

    added = ada.client.add_members(
        ada.project_id, cluster, component="worker", count=1, placement=models.Placement(sku=SKU, gpu_count=2)
    )
    place.over(ada, cluster, added.id)
    _, second = place.members(ada, cluster)
    assert place.slurm(ada, cluster, "srun", "-w", second.name, "hostname").exit_code == 0

    place.over(ada, cluster, ada.client.drain_member(ada.project_id, cluster, second.id).id)
    place.over(ada, cluster, ada.client.remove_member(ada.project_id, cluster, second.id).id)
    assert place.slurm(ada, cluster, "sinfo", "-N", "-h", "-o", "%N").text.split() == [first.name]
    place.stop(ada, cluster)
