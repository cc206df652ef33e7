"""The `mooring` command. It reaches the platform only through the SDK."""
