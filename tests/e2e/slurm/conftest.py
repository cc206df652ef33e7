"""One site for all tests of real Slurm that a process runs: making it takes longer than most of them."""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from tempfile import gettempdir

import pytest

from tests.e2e.slurm.cluster import SlurmSite, SlurmTenant, is_root, site


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without root nothing here can run, and says so."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.real_part("slurm"))
            if not is_root():
                item.add_marker(pytest.mark.skip(reason="sandboxes with real Slurm need root"))


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmSite]:
    directory = tmp_path_factory.mktemp("slurm")
    for each in takewhile(lambda each: each != Path(gettempdir()), directory.parents):  # pytest's own, which are shut
        each.chmod(0o711)
    with site(directory, gpus=(16,)) as made:
        yield made


@pytest.fixture(scope="session")
def ada(place: SlurmSite) -> SlurmTenant:
    return place.tenant("harbour")
