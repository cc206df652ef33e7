"""The manifests of the apps that come with adapters, judged by the server's own lint."""

import json
from pathlib import Path

import pytest

from mooring.core.catalog.compatibility import Capacity, CapacityShape, fit
from mooring.core.catalog.manifest_lint import AppContext, examine
from mooring_adapter.scaffold.writer import write
from mooring_slurm import catalog as slurm_catalog
from mooring_workload import catalog

DIGEST = f"sha256:{'ab' * 32}"


@pytest.mark.parametrize("app", catalog.APPS)
def test_the_manifest_of_each_app_has_nothing_to_complain_about(app: str) -> None:
    found = examine(catalog.manifest_of(app), AppContext(app, catalog.CATEGORY[app]))
    assert found.findings == ()


def test_the_manifest_of_a_new_adapter_has_nothing_to_complain_about(tmp_path: Path) -> None:
    write(tmp_path, "python", "my-app")
    manifest = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))
    assert examine(manifest, AppContext("my-app", "web")).findings == ()


def test_an_image_makes_a_container_of_hello() -> None:
    manifest = catalog.manifest_of("hello", {"image": DIGEST}, version="1.1.0")
    found = examine(manifest, AppContext("hello", "web"))
    assert found.findings == ()
    assert found.manifest is not None
    assert found.manifest.runtime_profile is not None
    assert (found.manifest.version, found.manifest.runtime_profile.image) == ("1.1.0", "image")


@pytest.mark.parametrize("version", [slurm_catalog.VERSION, slurm_catalog.NEXT_VERSION])
def test_the_manifest_of_the_slurm_adapter_has_nothing_to_complain_about(version: str) -> None:
    found = examine(slurm_catalog.manifest_of(version), AppContext(slurm_catalog.APP, slurm_catalog.CATEGORY))
    assert found.findings == ()


def test_slurm_is_launched_only_where_its_programs_are() -> None:
    manifest = examine(slurm_catalog.manifest_of(), AppContext(slurm_catalog.APP, slurm_catalog.CATEGORY)).manifest
    assert manifest is not None
    found = {"munged": "munge-0.5.15", "slurmctld": "slurm-wlm 22.05.8", "slurmd": "slurm-wlm 22.05.8"}
    assert fit(manifest.compatibility, (Capacity(CapacityShape.GPU_SLICE, 1, facts=found),)).fits
    for missing in found:
        facts = {name: text for name, text in found.items() if name != missing}
        refused = fit(manifest.compatibility, (Capacity(CapacityShape.GPU_SLICE, 1, facts=facts),))
        assert refused.smallest_change == f"a node with {missing}"
