"""The supervisor: the small init of a sandbox.

There is one *sandbox supervisor* per sandbox; in a pid namespace it is pid 1. For each owner it forks an *owner
supervisor*, which starts the owner's programs, logs their output, restarts them and keeps their results. So one owner
can be killed completely, with every daemon it left behind, while the others keep running: by the owner's own pid
namespace where the supervisor may create one, otherwise by the process tree below the owner supervisor, which is a
subreaper that no descendant can escape.

The supervisor outlives the agent. It serves a listening unix socket whose descriptor it inherited, so no path to it
needs to exist inside the sandbox: one connection per request, one message in, one reply out. The sandbox supervisor
passes a request for an owner to that owner's supervisor, together with the connection. Environments and secrets arrive
in messages and stay in memory. What must outlive everything (which keys were started, how they ended, what they wrote)
is in files of a directory whose descriptor was inherited too.

All of it is standard library, synchronous and single-threaded: a process that must never fail does as little as
possible. It is not dumpable, so nobody in the sandbox can trace it or use its descriptors.
"""
