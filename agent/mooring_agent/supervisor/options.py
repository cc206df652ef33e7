"""What a supervisor is told when it is started; everything later comes over its socket."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from mooring_agent.supervisor import segmented_log


class SupervisorOptions(NamedTuple):
    """The supervisor of one sandbox. Descriptors were opened before the root changed."""

    listener: int  # a listening SOCK_SEQPACKET unix socket
    state: int  # the directory of records and logs, outside of the sandbox
    agent_uid: int  # who may ask, as this process's user namespace shows it
    title: str  # what `ps` shows
    peer_outside: bool = False  # whoever asks must not be in this pid namespace (its pid is shown as 0)
    owner_namespaces: bool = False  # one pid namespace per owner; else a tree of processes below a subreaper
    switch_users: bool = True  # programs run as the user they name; else as the supervisor's own
    start: int | None = None  # the directory below which a program's directory lies; else the root
    addresses: tuple[str, ...] = ("127.0.0.1", "::1")  # where `dial` connects to, in this order
    markers: Mapping[str, str] = {}  # set in every program's environment, to find again whose a process is
    drop_capabilities: tuple[int, ...] = ()  # not even a program of root's holds these
    no_new_privileges: bool = False  # also for root's programs
    log_segment_bytes: int = segmented_log.SEGMENT_BYTES
    log_head_bytes: int = segmented_log.HEAD_BYTES
    prepare_owner: Callable[[], None] | None = None  # in a new owner's pid namespace; else it gets a /proc of its own
    prepare_program: Callable[[], None] | None = (
        None  # in a new process, still as the supervisor's user, before it is replaced
    )
