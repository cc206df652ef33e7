"""Signatures: cosign for artifacts, Ed25519 for keys and tasks."""
