"""The launcher's configuration."""

from typing import Any

import pytest

from mooring_slurm.catalog import manifest_of
from mooring_slurm.launch_config import ConfigRefused, LaunchConfig, Partition, read_config
from tests.support.rows import every_row


def test_nothing_filled_in_is_the_default() -> None:
    assert read_config({}) == LaunchConfig()
    assert read_config({}).user == "app"
    assert read_config({}).default_partition == Partition("main", default=True)


def test_the_manifests_defaults_are_those_of_the_code() -> None:
    fields = manifest_of()["config_schema"]["properties"]
    assert read_config({name: each["default"] for name, each in fields.items() if "default" in each}) == LaunchConfig()
    drain = manifest_of()["lifecycle"]["drain"]["from_config"]  # which the platform reads
    assert set(fields) == {*LaunchConfig.__dataclass_fields__, drain}


def test_without_a_default_the_first_partition_is_used() -> None:
    config = read_config({"partitions": [{"name": "a"}, {"name": "b", "max_minutes": 5}]})
    assert config.partitions == (Partition("a", default=True), Partition("b", max_minutes=5))


def test_users_have_the_same_numbers_on_every_member() -> None:
    assert read_config({"users": ["alice", "app", "bob"]}).uids() == [
        {"name": "app", "uid": 1_000},
        {"name": "alice", "uid": 1_001},
        {"name": "bob", "uid": 1_002},
    ]


@every_row(
    ("given", "why"),
    [
        ({"partitions": [{"name": "a"}, {"name": "a"}]}, "given twice"),
        ({"partitions": [{"name": "a", "default": True}, {"name": "b", "default": True}]}, "both be the default"),
        ({"partitions": [{"name": "default"}]}, "a special meaning"),
        ({"users": ["root"]}, "a system user"),
        ({"users": ["alice", "alice"]}, "given twice"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_sentence(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigRefused, match=why):
        read_config(given)
