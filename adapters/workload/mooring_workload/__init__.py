"""The workload adapter: what a manifest's runtime profile says, done on a node and looked after.

It knows no app by name. `profile` reads the manifest, `render` turns it into tasks for one member, `adapter` says
which of them is next, and `cloud_init` writes the same for a machine that boots by itself.
"""
