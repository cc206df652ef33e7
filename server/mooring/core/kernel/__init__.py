"""Decisions of the kernel wing: what everything is made of."""
