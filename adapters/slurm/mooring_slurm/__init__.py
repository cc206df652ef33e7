"""Slurm as an app of Mooring: clusters of real daemons inside a project's allocations.

`launch_config` reads the launcher's configuration, `layout` has the paths and ports in a sandbox, `config_files`
renders Slurm's own files, `daemons` has the command lines of its programs, and `slurm_node` is the program on the node
that talks to Slurm. `plans` decides what is done when; the platform executes it and knows nothing about Slurm.
"""
