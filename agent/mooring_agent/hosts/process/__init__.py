"""The process host: sandboxes that are directories and processes of the agent's user, without root or isolation.

Nothing is isolated: a program sees the machine's files, processes and network as the agent's user does, and limits are
not enforced. The host says so (`isolation: none`) and therefore accepts sandboxes of one project only: while one
exists, a sandbox of another project is refused with `capacity`. Every program runs as the agent's user, whichever user
its task names, without new privileges; if the agent is root, its programs still have no capabilities.

Paths of `files.write` are relative to the sandbox's root directory, which programs find in `MOORING_ROOT`; so is a
program's working directory. `HOME` and `TMPDIR` are inside it.

**What a receipt covers.** Processes are found in the tree below the sandbox's supervisor, by a mark in their
environment, and by the supervisor's title. Sockets, ports, namespaces and control groups are those that the found
processes hold or are in; mounts are those below the sandbox's directory; files are those in the directory. Links,
containers and cached secrets cannot exist on this host: creating a link or a mount needs a capability that no program
here has, the host starts no containers, and it caches no secrets (one that is written to a file is a file). They count
as inspected, with 0. A control group that contains one of the processes when the inspection begins is removed, and
searched for as a directory too. What a program writes outside its sandbox's directory (or an empty control group that
it left, where the agent is root) cannot be distinguished from the user's other files and is not inspected: that is what
no isolation means.
"""

from mooring_agent.hosts.process.host import ProcessHost

__all__ = ["ProcessHost"]
