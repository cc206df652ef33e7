"""Tasks: verified, journaled, executed by their handlers, and reported to the platform."""
