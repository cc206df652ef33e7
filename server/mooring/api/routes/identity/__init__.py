"""Endpoints of the identity wing: who calls, and what they may do."""
