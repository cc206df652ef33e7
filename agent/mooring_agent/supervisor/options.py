"""What a supervisor is started with; everything else arrives over its socket."""

from collections.abc import Mapping
from typing import NamedTuple

from mooring_agent.supervisor import segmented_log


class SupervisorOptions(NamedTuple):
    """The options of the supervisor of a sandbox without namespaces."""

    listener: int  # a listening SOCK_SEQPACKET unix socket
    state: int  # the directory of records and logs
    agent_uid: int  # the uid whose requests are accepted
    title: str  # what `ps` shows
    start: int  # the directory that a program's working directory is relative to
    addresses: tuple[str, ...] = ("127.0.0.1", "::1")  # where `dial` connects, in this order
    markers: Mapping[str, str] = {}  # set in every program's environment, to identify its owner later
    drop_capabilities: tuple[int, ...] = ()  # no program has these, not even root's
    no_new_privileges: bool = False  # for root's programs too
    log_segment_bytes: int = segmented_log.SEGMENT_BYTES
    log_head_bytes: int = segmented_log.HEAD_BYTES
