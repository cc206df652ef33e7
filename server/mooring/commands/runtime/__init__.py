"""Use cases about what is running: they load, let the core decide, and apply the decision."""
