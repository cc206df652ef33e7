"""What root in a sandbox tries against the machine and its neighbours; runs inside, with only the standard library."""

import ctypes
import errno
import json
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable

Attempt = Callable[[dict[str, str]], object]

ATTEMPTS: dict[str, Attempt] = {}
IP_RECVERR = 11  # report when no host has an address
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def attempt(function: Attempt) -> Attempt:
    """Register an attempt."""
    ATTEMPTS[function.__name__] = function
    return function


def checked(result: int) -> int:
    """The result of a C library call, or its error."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def call(number: int, *arguments: object) -> int:
    """A system call of x86_64."""
    ctypes.set_errno(0)
    return checked(libc.syscall(ctypes.c_long(number), *arguments))


def write(path: str, text: str = "1") -> str:
    """Write to something that exists."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    return f"wrote {path}"


@attempt
def make_a_device_of_the_disk(given: dict[str, str]) -> object:
    os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))
    return os.open("/tmp/disk", os.O_RDONLY)


@attempt
def make_a_device_of_memory(given: dict[str, str]) -> object:
    os.mknod("/dev/mem", stat.S_IFCHR | 0o600, os.makedev(1, 1))
    return os.open("/dev/mem", os.O_RDONLY)


@attempt
def make_somebody_elses_gpu(given: dict[str, str]) -> object:
    os.mknod("/dev/nvidia7", stat.S_IFCHR | 0o600, os.makedev(241, 7))
    return "made"


@attempt
def mount_a_file_system(given: dict[str, str]) -> object:
    return checked(libc.mount(b"none", b"/mnt", b"tmpfs", ctypes.c_ulong(0), None))


@attempt
def mount_the_disk(given: dict[str, str]) -> object:
    return checked(libc.mount(b"/dev/vda", b"/mnt", b"ext4", ctypes.c_ulong(0), None))


@attempt
def mount_another_view_of_processes(given: dict[str, str]) -> object:
    return checked(libc.mount(b"proc", b"/mnt", b"proc", ctypes.c_ulong(0), None))


@attempt
def mount_a_control_group(given: dict[str, str]) -> object:
    return checked(libc.mount(b"cgroup", b"/mnt", b"cgroup2", ctypes.c_ulong(0), None))


@attempt
def make_usr_writable(given: dict[str, str]) -> object:
    return checked(libc.mount(b"none", b"/usr", None, ctypes.c_ulong(32 | 4096), None))


@attempt
def write_below_usr(given: dict[str, str]) -> object:
    return os.open("/usr/bin/mooring-was-here", os.O_WRONLY | os.O_CREAT)


@attempt
def unmount_the_read_only_switches(given: dict[str, str]) -> object:
    return checked(libc.umount2(b"/proc/sys", ctypes.c_int(2)))


@attempt
def open_a_detached_mount(given: dict[str, str]) -> object:
    return call(428, ctypes.c_int(-100), b"/", ctypes.c_uint(1))


@attempt
def open_a_new_file_system(given: dict[str, str]) -> object:
    return call(430, b"tmpfs", ctypes.c_uint(0))


@attempt
def leave_by_pivot_root(given: dict[str, str]) -> object:
    return call(155, b"/mnt", b"/mnt")


@attempt
def leave_by_chroot(given: dict[str, str]) -> object:
    here = os.stat("/")
    child = os.fork()
    if child == 0:
        os.makedirs("/tmp/jail", exist_ok=True)
        outside = os.open("/", os.O_RDONLY)
        os.chroot("/tmp/jail")
        os.fchdir(outside)
        for _ in range(64):
            os.chdir("..")
        os.chroot(".")
        there = os.stat("/")
        machine = os.path.exists(given["machine_file"]) or os.path.exists("/old_root/etc")
        os._exit(0 if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino) and not machine else 1)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
        raise PermissionError(errno.EPERM, "the root behind the root is the sandbox's own")
    return "another root"


@attempt
def look_through_the_root_of_init(given: dict[str, str]) -> object:
    return os.listdir("/proc/1/root/")


@attempt
def look_through_the_directory_of_init(given: dict[str, str]) -> object:
    return os.listdir("/proc/1/cwd/")


@attempt
def open_what_init_has_open(given: dict[str, str]) -> object:
    return [os.readlink(f"/proc/1/fd/{name}") for name in os.listdir("/proc/1/fd")]


@attempt
def run_the_program_of_init(given: dict[str, str]) -> object:
    return os.open("/proc/1/exe", os.O_RDONLY)


@attempt
def read_the_memory_of_init(given: dict[str, str]) -> object:
    return os.open("/proc/1/mem", os.O_RDONLY)


@attempt
def trace_init(given: dict[str, str]) -> object:
    return call(101, ctypes.c_long(16), ctypes.c_long(1), None, None)


@attempt
def enter_the_mounts_of_init(given: dict[str, str]) -> object:
    descriptor = os.open("/proc/1/ns/mnt", os.O_RDONLY)
    return checked(libc.setns(ctypes.c_int(descriptor), ctypes.c_int(0)))


@attempt
def enter_its_own_network_again(given: dict[str, str]) -> object:
    descriptor = os.open("/proc/self/ns/net", os.O_RDONLY)
    return checked(libc.setns(ctypes.c_int(descriptor), ctypes.c_int(0)))


@attempt
def make_a_user_namespace(given: dict[str, str]) -> object:
    return checked(libc.unshare(ctypes.c_int(0x10000000)))


@attempt
def make_a_mount_namespace(given: dict[str, str]) -> object:
    return checked(libc.unshare(ctypes.c_int(0x00020000)))


@attempt
def clone_into_a_user_namespace(given: dict[str, str]) -> object:
    child = call(56, ctypes.c_ulong(0x10000000 | 17), *[ctypes.c_ulong(0)] * 4)
    if child == 0:
        os._exit(0)
    return child


@attempt
def clone_by_the_newer_call(given: dict[str, str]) -> object:
    arguments = ctypes.create_string_buffer(struct.pack("=8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0))
    child = call(435, arguments, ctypes.c_size_t(64))
    if child == 0:
        os._exit(0)
    return child


@attempt
def use_the_second_table_of_calls(given: dict[str, str]) -> object:
    return call(0x40000000 + 272, ctypes.c_ulong(0x10000000))


@attempt
def set_where_cores_go(given: dict[str, str]) -> object:
    return write("/proc/sys/kernel/core_pattern", "|/tmp/x")


@attempt
def set_the_program_that_loads_modules(given: dict[str, str]) -> object:
    return write("/proc/sys/kernel/modprobe", "/tmp/x")


@attempt
def set_a_switch_of_memory(given: dict[str, str]) -> object:
    return write("/proc/sys/vm/overcommit_memory", "0")


@attempt
def press_a_magic_key(given: dict[str, str]) -> object:
    return write("/proc/sysrq-trigger", "h")


@attempt
def have_the_pressure_of_the_machine_watched(given: dict[str, str]) -> object:
    return write("/proc/pressure/memory", "some 150000 2000000\0")


@attempt
def write_to_the_devices_tree(given: dict[str, str]) -> object:
    return write("/sys/class/net/lo/mtu", "1400")


@attempt
def read_the_keys_of_the_kernel(given: dict[str, str]) -> object:
    for path in ("/proc/keys", "/proc/kallsyms", "/proc/kcore", "/proc/modules"):
        if os.path.exists(path) and (text := os.read(os.open(path, os.O_RDONLY), 64)):
            return text.decode(errors="replace")
    raise PermissionError(errno.EPERM, "nothing in it")


@attempt
def load_a_module(given: dict[str, str]) -> object:
    return call(175, b"x", ctypes.c_ulong(1), b"")


@attempt
def load_a_module_from_a_file(given: dict[str, str]) -> object:
    return call(313, ctypes.c_int(0), b"", ctypes.c_int(0))


@attempt
def start_another_kernel(given: dict[str, str]) -> object:
    return call(246, ctypes.c_ulong(0), ctypes.c_ulong(0), None, ctypes.c_ulong(0))


@attempt
def restart_the_machine(given: dict[str, str]) -> object:
    # With a wrong second number nothing would happen even if it were allowed.
    return call(169, ctypes.c_int(-18751827), ctypes.c_int(1), ctypes.c_int(0), None)


@attempt
def name_a_file_by_its_handle(given: dict[str, str]) -> object:
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0) + bytes(128))
    number = ctypes.c_int(0)
    return call(303, ctypes.c_int(-100), b"/", handle, ctypes.byref(number), ctypes.c_int(0))


@attempt
def open_a_file_by_its_handle(given: dict[str, str]) -> object:
    # The root directory of most file systems has the inode 2.
    handle = ctypes.create_string_buffer(struct.pack("=IiII", 8, 1, 2, 0))
    directory = os.open("/", os.O_RDONLY)
    return os.listdir(call(304, ctypes.c_int(directory), handle, ctypes.c_int(os.O_RDONLY)))


@attempt
def use_the_keyring(given: dict[str, str]) -> object:
    return call(250, ctypes.c_int(0), ctypes.c_int(-4), ctypes.c_int(1))


@attempt
def add_a_key(given: dict[str, str]) -> object:
    return call(248, b"user", b"mooring", b"x", ctypes.c_size_t(1), ctypes.c_int(-4))


@attempt
def load_a_program_into_the_kernel(given: dict[str, str]) -> object:
    return call(321, ctypes.c_int(0), ctypes.create_string_buffer(128), ctypes.c_uint(128))


@attempt
def watch_the_processor(given: dict[str, str]) -> object:
    attributes = ctypes.create_string_buffer(128)
    return call(298, attributes, ctypes.c_int(0), ctypes.c_int(-1), ctypes.c_int(-1), ctypes.c_ulong(0))


@attempt
def read_the_log_of_the_kernel(given: dict[str, str]) -> object:
    return call(103, ctypes.c_int(10), None, ctypes.c_int(0))


@attempt
def set_the_clock(given: dict[str, str]) -> object:
    return call(164, ctypes.create_string_buffer(16), None)


@attempt
def rename_the_machine(given: dict[str, str]) -> object:
    return checked(libc.sethostname(b"mine", ctypes.c_size_t(4)))


@attempt
def reach_ports_of_the_processor(given: dict[str, str]) -> object:
    return call(172, ctypes.c_int(3))


@attempt
def use_asynchronous_calls(given: dict[str, str]) -> object:
    return call(425, ctypes.c_uint(8), ctypes.create_string_buffer(256))


@attempt
def talk_to_the_hypervisor(given: dict[str, str]) -> object:
    return socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).fileno()


@attempt
def send_raw_packets(given: dict[str, str]) -> object:
    return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).fileno()


@attempt
def listen_to_all_packets(given: dict[str, str]) -> object:
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)).fileno()


@attempt
def change_its_address(given: dict[str, str]) -> object:
    family = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    request = struct.pack("16sH2s4s8x", b"eth0", socket.AF_INET, b"", socket.inet_aton("10.77.0.99"))
    return checked(libc.ioctl(family.fileno(), ctypes.c_ulong(0x8916), ctypes.create_string_buffer(request)))


@attempt
def find_a_device_of_the_machine(given: dict[str, str]) -> object:
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "nvidia0", "pts/ptmx"}
    found = []
    for directory, _, names in os.walk("/"):
        if directory.startswith(("/proc", "/sys", "/usr")):
            continue
        for name in names:
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            if (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and path.removeprefix("/dev/") not in harmless:
                found.append(path)
    if not found:
        raise PermissionError(errno.EPERM, "none")
    return found


@attempt
def find_a_file_of_the_machine(given: dict[str, str]) -> object:
    """By name and by content: every file outside /usr is opened and searched."""
    marks = [given["machine_mark"].encode(), given["neighbour_mark"].encode()]
    found = []
    for directory, names, files in os.walk("/"):
        names[:] = [name for name in names if os.path.join(directory, name) not in ("/proc", "/sys", "/usr")]
        for name in files:
            path = os.path.join(directory, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                with open(path, "rb") as file:
                    content = file.read()
                if any(mark in content or mark in name.encode() for mark in marks):
                    found.append(path)
    if not found:
        raise PermissionError(errno.EPERM, "none")
    return found


@attempt
def reach_a_path_of_the_machine(given: dict[str, str]) -> object:
    return os.listdir(os.path.dirname(given["machine_file"]))


@attempt
def see_a_process_of_the_machine(given: dict[str, str]) -> object:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with open(f"/proc/{name}/cmdline", "rb") as file:
                line = file.read()
            if given["machine_mark"].encode() in line or given["neighbour_mark"].encode() in line or b"pytest" in line:
                found.append(line.decode(errors="replace"))
    if not found:
        raise PermissionError(errno.EPERM, "none")
    return found


@attempt
def signal_a_process_of_the_machine(given: dict[str, str]) -> object:
    os.kill(int(given["machine_pid"]), 0)
    return "signalled"


@attempt
def signal_a_process_of_the_neighbour(given: dict[str, str]) -> object:
    os.kill(int(given["neighbour_pid"]), 0)
    return "signalled"


@attempt
def connect_to_a_port_of_the_machine(given: dict[str, str]) -> object:
    return socket.create_connection(("127.0.0.1", int(given["machine_port"])), timeout=30).fileno()


@attempt
def connect_to_the_address_of_the_machine(given: dict[str, str]) -> object:
    return socket.create_connection((given["machine_address"], int(given["machine_port"])), timeout=30).fileno()


@attempt
def connect_to_a_name_of_the_machine_without_a_path(given: dict[str, str]) -> object:
    socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect("\0" + given["machine_mark"])
    return "connected"


@attempt
def connect_to_a_name_of_the_neighbour_without_a_path(given: dict[str, str]) -> object:
    socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).connect("\0" + given["neighbour_mark"])
    return "connected"


@attempt
def connect_to_the_neighbour(given: dict[str, str]) -> object:
    return socket.create_connection((given["neighbour_address"], 8000), timeout=30).fileno()


@attempt
def send_a_datagram_to_the_neighbour(given: dict[str, str]) -> object:
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_IP, IP_RECVERR, 1)
    sender.connect((given["neighbour_address"], 8000))
    sender.settimeout(30)
    sender.send(b"hello")
    # Nobody has that address, which the kernel reports at the next use of the socket.
    return sender.recv(100).decode()


@attempt
def ping_the_neighbour(given: dict[str, str]) -> object:
    return ping(given["neighbour_address"])


@attempt
def share_memory_with_the_neighbour(given: dict[str, str]) -> object:
    return checked(libc.shmget(ctypes.c_int(0x4D4F4F52), ctypes.c_size_t(4096), ctypes.c_int(0)))


def ping(address: str) -> str:
    """Send one echo request; returns the reply, or raises the error."""
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    sender.setsockopt(socket.SOL_IP, IP_RECVERR, 1)
    sender.settimeout(30)
    sender.connect((address, 0))
    sender.send(struct.pack("!BBHHH", 8, 0, 0, 0, 1) + b"mooring")
    return sender.recv(100)[8:].decode()


def main(given: dict[str, str]) -> None:
    """Try everything; time-outs of the kernel take seconds, so the network attempts run concurrently."""
    outcomes = {}

    def one(name: str) -> None:
        try:
            outcomes[name] = f"got {ATTEMPTS[name](given)!r}"
        except OSError as problem:
            outcomes[name] = f"denied {problem}"

    slow = ("connect_to_the_neighbour", "send_a_datagram_to_the_neighbour", "ping_the_neighbour")
    threads = [threading.Thread(target=one, args=(name,)) for name in slow]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in ATTEMPTS:
        if name not in slow:
            one(name)
    print(json.dumps(outcomes))
