"""The workload adapter: runs a manifest's runtime profile on nodes and watches it.

It knows no app by name. `profile` reads the manifest, `render` turns it into tasks for one member, `plans` orders them
for each kind of operation, and `cloud_init` renders the same for a machine that boots by itself.
"""
