"""The program that spawns the init of a sandbox, or of an owner in it, and exits; the namespace host runs it for each.

It runs as `python -I -S` in a session of its own, so that it continues if the agent is killed, and uses only the
standard library. `sandbox_spawner.py` creates a sandbox: its namespaces, its mounts, and an init that holds them and
reaps. `owner_spawner.py` creates an owner's part of a sandbox: its own pid namespace and view of /proc, with an init
inside and a supervisor outside. So killing an owner's init kills all of its processes, killing the sandbox's init kills
all of the sandbox, and no process in a sandbox ever needs, or has, the right to create namespaces.

Both inits are `mooring-init` (init.c), a static program that loads nothing: no interpreter, and no descriptor of the
machine's files, is ever inside a root that a tenant can write to.
"""
