"""Slurm as an app of Mooring: clusters of real daemons inside of a project's allocations.

`config` reads what a launcher filled in, `layout` says where things lie in a sandbox, `conf` renders Slurm's own files,
`daemons` says how its programs are started, and `slurm_node` is the program that speaks with Slurm on the node. What is
done when is in the plans; the platform carries it out and knows nothing of Slurm.
"""
