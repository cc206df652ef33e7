"""Writes a small adapter into a new directory, in one of several languages; see `writer`."""
