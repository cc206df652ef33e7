"""The Linux kernel as the agent uses it: system calls that Python lacks, /proc, and process trees.

Only the standard library is used here, because a sandbox's init imports it without site-packages.
"""
