"""Mooring's node agent: executes signed tasks on a machine and proves what it removed."""

VERSION = "0.1.0"
