"""What a supervisor is started with; everything else arrives over its socket."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mooring_agent.supervisor import segmented_log


class SupervisorOptions(NamedTuple):
    """The options of one sandbox's supervisor. Descriptors were opened before the root changed."""

    listener: int  # a listening SOCK_SEQPACKET unix socket
    state: int  # the directory of records and logs, outside the sandbox
    agent_uid: int  # the uid whose requests are accepted, as this process's user namespace shows it
    title: str  # what `ps` shows
    peer_outside: bool = False  # requesters must not be in this pid namespace (their pid is shown as 0)
    owner_namespaces: bool = False  # one pid namespace per owner; otherwise a process tree below a subreaper
    switch_users: bool = True  # programs run as the user they name; otherwise as the supervisor's own
    start: int | None = None  # what a program's working directory is relative to; otherwise the root
    addresses: tuple[str, ...] = ("127.0.0.1", "::1")  # where `dial` connects, in this order
    markers: Mapping[str, str] = {}  # set in every program's environment, to identify its owner later
    drop_capabilities: tuple[int, ...] = ()  # no program has these, not even root's
    no_new_privileges: bool = False  # for root's programs too
    log_segment_bytes: int = segmented_log.SEGMENT_BYTES
    log_head_bytes: int = segmented_log.HEAD_BYTES
    prepare_owner: Callable[[], None] | None = (
        None  # runs in a new owner's pid namespace; by default it mounts a private /proc
    )
    prepare_program: Callable[[], None] | None = (
        None  # runs in a new process, still as the supervisor's user, before exec
    )
