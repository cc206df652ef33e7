"""Registries and other places where artifacts lie."""
