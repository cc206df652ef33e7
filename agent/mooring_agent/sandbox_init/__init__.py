"""The program that makes a sandbox, or an owner's part of one, and ends: the namespace host starts it anew for each.

It runs as `python -I -S`, in a session of its own, so that it goes on when the agent is killed, and uses the standard
library alone. `sandbox.py` makes a sandbox: its namespaces, its mounts, and an init that holds them and reaps.
`owner.py` makes an owner's part of a sandbox: a pid namespace and a view of /proc of its own, with a supervisor as
its init. So an owner's processes end for sure when its init is killed, all of a sandbox's when the sandbox's is, and
no process in a sandbox ever needs, or has, the right to make namespaces.
"""
