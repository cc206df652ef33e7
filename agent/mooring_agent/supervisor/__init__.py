"""The supervisor: the small init of a sandbox.

One *sandbox supervisor* stands for each sandbox; where there is a pid namespace it is its pid 1. For each owner it
forks one *owner supervisor* that starts the owner's programs, logs their output, restarts them and keeps their results.
So one owner can be killed whole, with every daemon that it left behind, while the others go on: by the owner's own pid
namespace where the supervisor may make one, otherwise by the tree of processes below the owner supervisor, which is a
subreaper, so that nothing that is started below it can leave it.

The supervisor outlives the agent. It is asked over a listening unix socket whose descriptor it was given, so no path to
it has to exist inside of the sandbox: one connection per question, one message in, one answer out. The sandbox
supervisor hands a question for an owner to that owner's supervisor together with its connection. Environments and
secrets arrive in messages and stay in memory. What has to outlive everything (which keys were started, how they ended,
what they wrote) is in files of a directory whose descriptor was given likewise.

All of it is the standard library, synchronous, and one thread: a process that must never fail does as little as it can.
It is not dumpable, so nobody in the sandbox can look into it or use its descriptors.
"""
