"""The process host: sandboxes that are directories and processes of the agent's own user, without root or isolation.

It keeps nothing apart: a program sees the machine's files, processes and network as the agent's user does, and limits
are not enforced. It says so (`isolation: none`), and therefore takes sandboxes of one project only: as long as one of
them stands, one of another project is refused with `capacity`. Every program runs as the agent's user, whichever user
its task names, without new privileges; if the agent is root, its programs hold no capability all the same.

Paths of `files.write` count from the sandbox's root directory, which programs find in `MOORING_ROOT`; a program's
directory counts from there too, so relative paths work. `HOME` and `TMPDIR` lie in it.

**What a receipt looked at.** Processes are found by the tree below the sandbox's supervisor, by a mark in the
environment and by the supervisor's title; sockets, ports, namespaces and control groups are those that the found
processes hold or are in; mounts are those below the sandbox's directory; files are those of the directory. Links,
containers and cached secrets cannot come to be on this host: to make a link or a mount on the machine needs a
capability that no program here has, this host starts no containers, and it caches no secret (one that is written to a
file is a file). They count as looked at, with 0. A control group that one of its processes is in when the look begins
is found, removed and looked for as a directory too. What a program writes outside of its sandbox's directory (also an
empty control group that it has left, where the agent is root and the machine lets it make one) cannot be told from the
user's other files and is not looked at: that is what no isolation means.
"""

from mooring_agent.hosts.process.host import ProcessHost

__all__ = ["ProcessHost"]
