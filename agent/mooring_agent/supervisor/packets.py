"""Messages between agent and supervisor: one JSON object per packet of a unix socket, with descriptors attached.

A packet is small. A body that does not fit, such as a program's long input, is put into a memory file whose descriptor
is passed first; so a secret in a message never touches a disk. The first byte of a packet says which kind it is.
"""

import array
import json
import os
import socket
import stat
from typing import Any, Final

Message = dict[str, Any]

INLINE_MAX_BYTES: Final = 48 * 1024
BODY_MAX_BYTES: Final = 24 * 1024 * 1024
DESCRIPTORS_MAX: Final = 8

_INLINE: Final = b"I"
_MEMORY: Final = b"M"


class WireError(Exception):
    """The other side sent a malformed message, or is gone."""


def pack(message: Message) -> tuple[bytes, list[int]]:
    """The packet, and the descriptors to send before all others, which the caller must close."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) <= INLINE_MAX_BYTES:
        return _INLINE + body, []
    if len(body) > BODY_MAX_BYTES:
        raise WireError(f"a message of {len(body)} bytes is longer than {BODY_MAX_BYTES}")
    memory = os.memfd_create("message", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(memory), "wb") as file:
        file.write(body)
    return _MEMORY, [memory]


def unpack(packet: bytes, descriptors: list[int]) -> Message:
    """The message of a packet. A long body is read from the first descriptor; all descriptors stay open."""
    if packet[:1] == _INLINE:
        body = packet[1:]
    elif packet[:1] == _MEMORY and descriptors:
        body = _read_memory(descriptors[0])
    else:
        raise WireError("a packet of unknown kind")
    try:
        message = json.loads(body)
    except ValueError as error:
        raise WireError("a message that is not JSON") from error
    if not isinstance(message, dict):
        raise WireError("a message that is not an object")
    return message


def _read_memory(descriptor: int) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > BODY_MAX_BYTES:
        raise WireError("a message body that is not a memory file, or is too long")
    return os.pread(descriptor, status.st_size, 0)


def send_packet(connection: socket.socket, packet: bytes, descriptors: list[int]) -> None:
    """Send one packet without waiting; raises `BlockingIOError` if the other side does not read."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([packet], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive_packet(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one available packet and its descriptors; an empty packet is the end."""
    size = array.array("i").itemsize
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    packet, rights, seen, _ = connection.recvmsg(INLINE_MAX_BYTES + 1, socket.CMSG_SPACE(DESCRIPTORS_MAX * size), flags)
    descriptors = array.array("i")
    for level, kind, data in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % size])
    if seen & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(list(descriptors))
        raise WireError("a packet that is too long")
    return packet, list(descriptors)


def send_message(connection: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message; the descriptors stay open here."""
    packet, bodies = pack(message)
    try:
        send_packet(connection, packet, [*bodies, *descriptors])
    finally:
        close_all(bodies)


def receive_message(connection: socket.socket) -> tuple[Message | None, list[int]]:
    """Receive one available message and its descriptors; none at the end."""
    packet, descriptors = receive_packet(connection)
    if not packet:
        close_all(descriptors)
        return None, []
    try:
        message = unpack(packet, descriptors)
    except WireError:
        close_all(descriptors)
        raise
    if packet[:1] == _MEMORY:
        os.close(descriptors.pop(0))
    return message, descriptors


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
