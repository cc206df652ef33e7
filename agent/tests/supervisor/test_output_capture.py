"""Captured output is marked as truncated when the disk is full."""

import os
from pathlib import Path

import pytest

from mooring_agent.supervisor.output_capture import OutputCapture, read_capture


def test_output_that_a_full_disk_does_not_take_is_marked_as_truncated(tmp_path: Path) -> None:
    capture = OutputCapture(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY), 100)
    capture.write(b"kept")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, capture._file)  # every write from here on finds no room
    os.close(full)
    capture.write(b"lost")
    capture.write(b"lost too")
    capture.close()
    assert read_capture(str(tmp_path)) == (b"kept", True)


def test_a_link_in_the_place_of_an_output_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the machine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stdout").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        read_capture(str(tmp_path / "run"))
