"""Registries and other sources of artifacts."""
