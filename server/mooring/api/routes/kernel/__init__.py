"""Endpoints of the kernel wing: health, metrics and the API reference."""
