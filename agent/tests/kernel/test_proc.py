"""What /proc says of a process: absent when it is gone, and an error when the agent itself could not look."""

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mooring_agent.kernel import proc


@contextmanager
def no_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_has_ended_reads_as_absent() -> None:
    program = subprocess.Popen(["true"])
    program.wait()
    assert proc.find_process(program.pid) is None


def test_a_process_that_is_there_is_found() -> None:
    found = proc.find_process(os.getpid())
    assert found is not None
    assert (found.pid, found.parent, found.ended) == (os.getpid(), os.getppid(), False)


def test_an_agent_without_free_descriptors_does_not_take_a_process_for_gone() -> None:
    with pytest.raises(OSError) as caught, no_descriptors():
        proc.find_process(os.getpid())
    assert caught.value.errno == errno.EMFILE
