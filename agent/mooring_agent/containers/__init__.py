"""Containers in a sandbox, run by podman from images that the agent verified itself."""
