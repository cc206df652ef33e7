"""Mooring's node agent: does signed tasks on a machine, and proves what it undid."""

VERSION = "0.1.0"
