"""Files of a sandbox are written below its root and nowhere else, whatever the path or the tenant tries."""

import os
import stat
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.tests.support.process_sandboxes import A, B, host_below, root_of, shell, wanted
from mooring_agent.hosts import safe_paths
from mooring_agent.hosts.contract import FileSpec, HostFailure, Owner
from mooring_agent.hosts.process import ProcessHost
from tests.support.rows import every_row


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[ProcessHost]:
    """A host with one sandbox."""
    async with host_below(tmp_path, f"node_{uuid.uuid4().hex}") as made:
        await made.create(wanted())
        yield made


def everything(directory: Path) -> dict[str, tuple[int, int]]:
    """The contents of a directory with times and sizes, to check that nothing was touched."""
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in directory.rglob("*")}


async def test_files_get_their_content_and_mode(host: ProcessHost, tmp_path: Path) -> None:
    files = [
        FileSpec("/etc/app/app.conf", b"one", 0o640),
        FileSpec("relative", b"", 0o600),
        FileSpec("/var/lib/app/", directory=True, mode=0o750),
        FileSpec("/grüße/日本", b"x"),
    ]
    assert await host.write_files(A, files) == 4
    root = root_of(tmp_path)
    assert (root / "etc/app/app.conf").read_bytes() == b"one"
    assert stat.S_IMODE((root / "etc/app/app.conf").stat().st_mode) == 0o640
    assert stat.S_IMODE((root / "var/lib/app").stat().st_mode) == 0o750
    assert (root / "grüße/日本").read_bytes() == b"x"
    assert await host.write_files(A, [FileSpec("/etc/app/app.conf", b"two", 0o600)]) == 1
    assert (root / "etc/app/app.conf").read_bytes() == b"two"


def accounts() -> bytes:
    return Path("/etc/passwd").read_bytes()


async def test_an_absolute_path_counts_from_the_sandboxs_root(host: ProcessHost, tmp_path: Path) -> None:
    outside = accounts()
    await host.write_files(A, [FileSpec("/etc/passwd", b"mine")])
    assert accounts() == outside
    assert (root_of(tmp_path) / "etc/passwd").read_bytes() == b"mine"


@every_row(
    "path",
    [
        "",
        "/",
        "..",
        "../up",
        "/../up",
        "a/../../up",
        "a/./b",
        "a//b",
        "a/",
        "//etc/passwd",
        "a\0b",
        "a\nb",
        "a\x1bb",
        "a\u202eb",  # turns the direction of what follows
        "a\u200bb",  # has no width
        "a\u2028b",
        "e\u0301",  # é in two letters
        "\ud800",  # half a letter
        "\ue000",
        "\uff0e\uff0e/\u0000",
        "x" * 256,
        "/".join(["d"] * 40),
        "/".join(["y" * 200] * 6),
        ".mooring-0000",
    ],
)
async def test_a_path_that_is_odd_is_refused(host: ProcessHost, tmp_path: Path, path: str) -> None:
    before = everything(tmp_path)
    with pytest.raises(HostFailure) as refused:
        await host.write_files(A, [FileSpec("/good", b"x"), FileSpec(path, b"x")])
    assert refused.value.code == "path_refused"
    assert everything(tmp_path) == before


async def test_what_is_too_large_or_too_much_is_refused(host: ProcessHost) -> None:
    with pytest.raises(HostFailure) as large:
        await host.write_files(A, [FileSpec("/big", bytes(safe_paths.FILE_MAX_BYTES + 1))])
    with pytest.raises(HostFailure) as many:
        await host.write_files(A, [FileSpec(f"/f{number}") for number in range(safe_paths.FILES_MAX + 1)])
    assert (large.value.code, many.value.code) == ("too_large", "too_large")


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1777, -1, 0o100644])
async def test_a_mode_with_special_bits_is_refused(host: ProcessHost, mode: int) -> None:
    with pytest.raises(HostFailure) as refused:
        await host.write_files(A, [FileSpec("/tool", b"x", mode)])
    assert refused.value.code == "permission_denied"


@pytest.mark.parametrize("target", ["/", "..", "../../..", "."])
async def test_a_link_that_a_tenant_plants_between_two_writes_is_refused(
    host: ProcessHost, tmp_path: Path, target: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("the machine's")
    await host.write_files(A, [FileSpec("/etc/app/app.conf", b"one")])
    script = f"rm -r etc/app && ln -s {outside} etc/app && ln -s {outside}/file etc/file && ln -s {target} way"
    assert await host.run(A, "task-1", shell(script), 60) == 0
    before = everything(outside)
    for path in ("/etc/app/app.conf", "/etc/app/file", "/etc/file", "/etc/app", "/way/tmp/x", "/way"):
        with pytest.raises(HostFailure) as refused:
            await host.write_files(A, [FileSpec(path, b"two")])
        assert refused.value.code == "path_refused"
        with pytest.raises(HostFailure):
            await host.write_files(A, [FileSpec(path, directory=True, mode=0o700)])
    assert everything(outside) == before
    report = await host.close_owner(A)
    assert report.clean
    assert everything(outside) == before


async def test_a_pipe_a_socket_or_a_directory_in_a_files_place_is_refused(host: ProcessHost, tmp_path: Path) -> None:
    script = "mkfifo pipe && mkdir dir && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'"
    assert await host.run(A, "task-1", shell(script), 60) == 0
    for path in ("/pipe", "/dir", "/sock"):
        with pytest.raises(HostFailure) as refused:
            await host.write_files(A, [FileSpec(path, b"x")])
        assert refused.value.code == "path_refused"
    with pytest.raises(HostFailure) as refused:
        await host.write_files(A, [FileSpec("/pipe/below", b"x")])
    assert refused.value.code == "path_refused"
    assert not list(root_of(tmp_path).glob("**/.mooring-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a device, as root")
async def test_a_device_in_a_files_place_is_refused(host: ProcessHost, tmp_path: Path) -> None:
    os.mknod(root_of(tmp_path) / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with pytest.raises(HostFailure) as refused:
        await host.write_files(A, [FileSpec("/null", b"x")])
    assert refused.value.code == "path_refused"


async def test_a_hard_link_is_replaced_and_not_written_into(host: ProcessHost, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("the machine's")
    (root_of(tmp_path) / "same").hardlink_to(outside)
    await host.write_files(A, [FileSpec("/same", b"mine")])
    assert outside.read_text() == "the machine's"


async def test_a_file_of_another_owners_is_refused(host: ProcessHost, tmp_path: Path) -> None:
    await host.write_files(A, [FileSpec("/shared/a", b"a")])
    with pytest.raises(HostFailure) as refused:
        await host.write_files(B, [FileSpec("/shared/a", b"b")])
    assert refused.value.code == "path_refused"
    assert (root_of(tmp_path) / "shared/a").read_bytes() == b"a"


async def test_a_directory_goes_with_the_last_owner_who_has_something_in_it(host: ProcessHost, tmp_path: Path) -> None:
    await host.write_files(A, [FileSpec("/shared/a", b"a")])
    await host.write_files(B, [FileSpec("/shared/b", b"b")])
    assert (await host.close_owner(A)).clean
    assert [path.name for path in (root_of(tmp_path) / "shared").iterdir()] == ["b"]
    assert (await host.close_owner(B)).clean
    assert not (root_of(tmp_path) / "shared").exists()


async def test_a_sandbox_that_is_not_there_takes_no_files(host: ProcessHost) -> None:
    with pytest.raises(HostFailure) as refused:
        await host.write_files(Owner("alc_none"), [FileSpec("/a", b"x")])
    assert refused.value.code == "not_found"
