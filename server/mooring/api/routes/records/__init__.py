"""Endpoints of the records wing: what happened."""
