"""Images built from files: reproducible bytes, and a valid OCI layout."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from mooring_workload.image import BuildFailed, ImageFile, installed, write_image

FILES = [ImageFile("app/program", content=b"print(1)\n", mode=0o755), ImageFile("etc/passwd", content=b"app\n")]
ABOUT = {"User": "1000:1000"}


def test_the_same_files_give_the_same_digest_in_whatever_order_they_come(tmp_path: Path) -> None:
    first = write_image(tmp_path / "a", [FILES], ABOUT)
    second = write_image(tmp_path / "b", [FILES[::-1]], ABOUT)
    assert first.digest == second.digest
    assert write_image(tmp_path / "c", [FILES[:1]], ABOUT).digest != first.digest


def test_every_blob_is_what_its_name_says_and_the_layer_holds_the_files(tmp_path: Path) -> None:
    image = write_image(tmp_path / "image", [FILES], ABOUT)
    for digest in (image.digest, *image.parts):
        assert hashlib.sha256(image.blob(digest).read_bytes()).hexdigest() == digest.partition(":")[2]
    layer, config = image.parts
    unpacked = gzip.decompress(image.blob(layer).read_bytes())
    about = json.loads(image.blob(config).read_bytes())
    assert about["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(unpacked).hexdigest()}"]
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
        names = {each.name: each for each in tar}
    assert list(names) == ["app", "app/program", "etc", "etc/passwd"]
    assert (names["app/program"].mode, names["app/program"].mtime, names["app"].isdir()) == (0o755, 0, True)


def test_an_image_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_image(tmp_path / "image", [[ImageFile("x", tmp_path / "nowhere")]], ABOUT)
    assert list(tmp_path.iterdir()) == []


def test_packages_that_cannot_be_installed_say_why(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("nothing==1.0\n")
    with (
        pytest.raises(BuildFailed, match="cannot install the packages: no such index"),
        installed(requirements, ["sh", "-c", "echo no such index >&2; exit 1"]),
    ):
        pass
