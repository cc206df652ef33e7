"""Decisions of the records wing: what happened."""
