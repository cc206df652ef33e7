"""Level-triggered background workers."""
