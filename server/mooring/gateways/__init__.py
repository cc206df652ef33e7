"""Gateways to everything outside of the core: time, randomness, secrets, telemetry, the network."""
