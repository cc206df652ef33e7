"""Endpoints of the runtime wing: what is running."""
