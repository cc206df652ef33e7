"""Logs are bounded, and readable from an offset."""

import os
from pathlib import Path

import pytest

from mooring_agent.supervisor.segmented_log import TAIL_SEGMENTS, LogWriter, last_lines, read_log


def writer(path: Path, segment_bytes: int = 100, head_bytes: int = 200) -> LogWriter:
    """A writer of a small log."""
    path.mkdir(exist_ok=True)
    return LogWriter(os.open(path, os.O_RDONLY | os.O_DIRECTORY), segment_bytes, head_bytes)


def test_every_offset_of_a_log_that_fits_gives_the_rest(tmp_path: Path) -> None:
    log = writer(tmp_path / "log")
    content = os.urandom(550)
    for start in range(0, len(content), 7):
        log.write(content[start : start + 7])
    log.close()
    for offset in range(len(content) + 3):
        assert b"".join(read_log(str(tmp_path / "log"), offset)) == content[offset:]


def test_a_long_log_keeps_its_beginning_and_its_end_and_says_what_is_gone(tmp_path: Path) -> None:
    log = writer(tmp_path / "log")
    for number in range(1000):
        log.write(b"%09d\n" % number)
    log.close()
    size = sum(file.stat().st_size for file in (tmp_path / "log").iterdir())
    assert size == 200 + TAIL_SEGMENTS * 100
    seen = b"".join(read_log(str(tmp_path / "log"), 0))
    assert seen.startswith(b"".join(b"%09d\n" % number for number in range(20)))
    assert f"[{10_000 - size} bytes were dropped here]".encode() in seen
    assert seen.endswith(b"".join(b"%09d\n" % number for number in range(960, 1000)))
    assert b"".join(read_log(str(tmp_path / "log"), 9_990)) == b"%09d\n" % 999


def test_a_second_writer_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    for part in (b"a" * 150, b"b" * 150, b""):
        log = writer(tmp_path / "log")
        log.write(part)
        log.close()
    assert b"".join(read_log(str(tmp_path / "log"), 0)) == b"a" * 150 + b"b" * 150


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list(read_log(str(tmp_path / "none"), 0)) == []
    assert last_lines(str(tmp_path / "none"), 5) == ()


def test_the_last_lines_are_the_newest(tmp_path: Path) -> None:
    log = writer(tmp_path / "log")
    log.write(b"".join(b"%d\n" % number for number in range(500)) + b"\xff half")
    log.close()
    assert last_lines(str(tmp_path / "log"), 3) == ("498", "499", "\ufffd half")


def test_a_full_disk_loses_output_and_nothing_else() -> None:
    class Full(LogWriter):
        def _next(self) -> None:
            raise OSError(28, "No space left on device")

    log = Full(os.open("/tmp", os.O_RDONLY), 100, 200)
    log.write(b"lost")
    assert (log.dropped, log.offset) == (4, 0)
    log.close()


@pytest.mark.parametrize("offset", [0, 50, 250])
def test_reading_while_segments_are_dropped_never_fails(tmp_path: Path, offset: int) -> None:
    log = writer(tmp_path / "log")
    log.write(b"x" * 900)
    reading = read_log(str(tmp_path / "log"), offset)
    first = next(reading)
    log.write(b"y" * 2000)
    assert (first + b"".join(reading)).endswith(b"y" * 100)
    log.close()
