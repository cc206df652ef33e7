"""`python -m server.tests.world SEED…`: the whole schedule of a seed, step by step."""

import asyncio
import sys

from server.tests.conftest import _make_template, copied_database
from server.tests.support.postgres import test_cluster_dsn
from server.tests.world.prepared_database import prepared_database
from server.tests.world.scenario import run_seed


async def _show(url: str, seeds: list[int]) -> None:
    async with prepared_database(url) as made:
        for seed in seeds:
            print(f"seed {seed}")
            await run_seed(made, seed, listener=print)


if __name__ == "__main__":
    template = asyncio.run(_make_template(test_cluster_dsn()))
    with copied_database(template) as url:
        asyncio.run(_show(url, [int(each) for each in sys.argv[1:]]))
