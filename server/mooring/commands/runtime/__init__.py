"""Use cases of the runtime wing: what is running."""
