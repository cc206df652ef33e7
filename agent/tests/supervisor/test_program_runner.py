"""A program runner over simulated processes: output without an end, a full disk, and no descriptors left."""

import os
import socket
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from mooring_agent.kernel import hostile_files
from mooring_agent.supervisor import event_loop, program_records, program_runner
from mooring_agent.supervisor.event_loop import EventLoop
from mooring_agent.supervisor.process_control import (
    Ended,
    Related,
    RequestRefused,
    SpawnSpec,
    StandardStreams,
    TerminalSize,
)
from mooring_agent.supervisor.program_runner import ProgramRunner
from mooring_agent.supervisor.request_listener import RequestListener

SPEC = SpawnSpec(("simulated",), {}, "root", "/", b"")


class SimulatedProcesses:
    """Starts nothing: keeps the output of each program open, and ends what it is asked to end."""

    def __init__(self) -> None:
        self.outputs: list[int] = []
        self.endings: list[Ended] = []
        self.problem: Exception | None = None

    def start(self, spec: SpawnSpec, streams: StandardStreams) -> int:
        if self.problem is not None:
            raise self.problem
        self.outputs.append(os.dup(streams.output))
        return 100 + len(self.outputs)

    def start_on_terminal(self, spec: SpawnSpec, size: TerminalSize) -> tuple[int, int]:
        raise NotImplementedError

    def signal(self, pids: Collection[int], number: int) -> None:
        pass

    def signal_foreground(self, terminal: int, number: int) -> None:
        pass

    def signal_all(self, number: int) -> None:
        pass

    def ended(self) -> Iterator[Ended]:
        endings, self.endings = self.endings, []
        return iter(endings)

    def living(self) -> list[int]:
        return []

    def is_empty(self) -> bool:
        return True

    def related(self, pid: int | None, key: str) -> Related:
        return Related(frozenset(), frozenset())


@pytest.fixture
def processes() -> Iterator[SimulatedProcesses]:
    made = SimulatedProcesses()
    yield made
    for output in made.outputs:
        os.close(output)


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop(lambda: None)
    yield made
    made.close()


@pytest.fixture
def runner(tmp_path: Path, loop: EventLoop, processes: SimulatedProcesses) -> ProgramRunner:
    return ProgramRunner(loop, processes, hostile_files.open_directory(tmp_path))


def test_a_leftover_process_that_never_stops_writing_does_not_keep_the_supervisor(
    runner: ProgramRunner, processes: SimulatedProcesses
) -> None:
    program = runner.start_run("flood", SPEC, 60)
    output, count = processes.outputs[0], 0

    class Refilled:
        """A log whose pipe is full again as soon as something was read from it."""

        def write(self, data: bytes) -> None:
            nonlocal count
            count += 1
            assert count < 100, "it reads for ever"
            os.write(output, data)

        def close(self) -> None:
            pass

    program.log = Refilled()  # type: ignore[assignment]
    os.write(output, bytes(65_536))
    processes.endings.append(Ended(101, 0))
    runner.reap()
    assert program.is_finished


def test_a_program_that_cannot_be_started_is_finished_whatever_the_reason(
    runner: ProgramRunner, processes: SimulatedProcesses
) -> None:
    rows = {"refused": RequestRefused("not_found", "absent"), "descriptors": OSError(24, "Too many open files")}
    for key, processes.problem in rows.items():
        with pytest.raises(type(processes.problem)):
            runner.start_run(key, SPEC, 60)
    found = {key: (program.entry["state"], program.entry["reason"]) for key, program in runner.programs.items()}
    assert found == {"refused": ("ended", "not_found"), "descriptors": ("ended", "host_error")}


def test_a_full_disk_refuses_a_start_and_leaves_nothing_that_seems_to_start(
    runner: ProgramRunner, processes: SimulatedProcesses, loop: EventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.start_run("before", SPEC, 60)
    with monkeypatch.context() as full:
        full.setattr(program_records, "save", failing_save)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                runner.start_run("later", SPEC, 60)
        before = pending(loop)
        for _ in range(3):
            runner._save()
        assert pending(loop) == before + 1  # however often it failed, there is one next try
    assert list(runner.programs) == ["before"]
    assert runner.start_run("later", SPEC, 60).entry["state"] == "running"


def pending(loop: EventLoop) -> int:
    """How many timers are going to call something."""
    return sum(timer.callback is not None for timer in loop._timers)


def failing_save(directory: int, entries: object) -> None:
    raise OSError(28, "No space left on device")


def test_pipes_that_leftover_processes_hold_open_are_bounded(
    runner: ProgramRunner, processes: SimulatedProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_runner, "OUTPUTS_MAX", 3)
    for number in range(3):
        runner.start_run(f"run-{number}", SPEC, 60)
        processes.endings.append(Ended(101 + number, 0))
        runner.reap()
    with pytest.raises(RequestRefused, match="hold their output open"):
        runner.start_run("one-more", SPEC, 60)


def test_a_listener_without_descriptors_neither_spins_nor_fills_the_disk(
    loop: EventLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tries = 0

    class Exhausted(socket.socket):
        def accept(self) -> tuple[socket.socket, str]:
            nonlocal tries
            tries += 1
            raise OSError(24, "Too many open files")

    listening = Exhausted(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(tmp_path / "socket"))
    listener = RequestListener(loop, os.dup(listening.fileno()), os.geteuid(), lambda *_: None)
    listener._listener.close()
    listener._listener = listening
    listener.start()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        listening.listen()
        client.connect(str(tmp_path / "socket"))
        loop.call_later(0.2, loop.stop)
        loop.run()
    listener.close()
    assert tries == 1
    assert capfd.readouterr().err == ""


def test_a_supervisor_writes_a_bounded_number_of_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(event_loop._Errors, "left", 2)
    for _ in range(5):
        event_loop._call(failing_callback)
    assert capsys.readouterr().err.count("Traceback") == 2


def failing_callback() -> None:
    raise LookupError


def print_much(processes: SimulatedProcesses, runner: ProgramRunner, name: str, size: int) -> None:
    """A program that prints this many bytes and ends."""
    program = runner.start_run(name, SPEC, 60)
    for _ in range(size // 65_536):
        os.write(processes.outputs[-1], b"x" * 65_536)
        runner._on_output(program, next(iter(program.outputs)))
    processes.endings.append(Ended(100 + len(processes.outputs), 0))
    runner.reap()
    os.close(processes.outputs.pop())
    processes.outputs.append(os.open("/dev/null", os.O_RDONLY))
    runner._on_output(program, next(iter(program.outputs)))


def kept(directory: Path) -> dict[str, int]:
    """The bytes of each log on disk."""
    logs = sorted((directory / "logs").iterdir())
    return {log.name: sum(file.stat().st_size for file in log.iterdir()) for log in logs}


def test_the_logs_of_an_owner_have_one_limit_and_the_oldest_make_room(
    tmp_path: Path, loop: EventLoop, processes: SimulatedProcesses
) -> None:
    directory = hostile_files.open_directory(tmp_path)
    runner = ProgramRunner(loop, processes, directory, logs_bytes=4 << 20)
    for number in range(5):
        print_much(processes, runner, f"run-{number}", 1 << 20)
    assert kept(tmp_path) == {"run-0": 0, **{f"run-{number}": 1 << 20 for number in range(1, 5)}}
    assert runner.programs["run-0"].entry["state"] == "ended", "its result is still known"
    # A supervisor that is started later counts what is there.
    later = ProgramRunner(loop, processes, hostile_files.open_directory(tmp_path), logs_bytes=4 << 20)
    print_much(processes, later, "run-5", 2 << 20)
    assert sum(kept(tmp_path).values()) <= 4 << 20
    assert kept(tmp_path)["run-5"] == 2 << 20
    # What still runs is not removed; it loses output.
    running = later.start_run("running", SPEC, 60)
    for _ in range(6 << 4):
        os.write(processes.outputs[-1], b"x" * 65_536)
        later._on_output(running, next(iter(running.outputs)))
    assert kept(tmp_path)["running"] == 4 << 20
    assert sum(kept(tmp_path).values()) == 4 << 20


def test_logs_leave_the_reserve_of_the_disk_free(
    tmp_path: Path, loop: EventLoop, processes: SimulatedProcesses
) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", tmp_path], check=True)
    try:
        directory = hostile_files.open_directory(tmp_path)
        runner = ProgramRunner(loop, processes, directory)
        for number in range(8):
            print_much(processes, runner, f"run-{number}", 12 << 20)
        free = os.statvfs(tmp_path)
        assert free.f_bavail * free.f_frsize >= (64 << 20) // 20 - (1 << 20)
        assert sum(kept(tmp_path).values()) > 48 << 20
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)
