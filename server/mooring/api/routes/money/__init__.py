"""Endpoints of the money wing: what it cost."""
