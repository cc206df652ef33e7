"""Level-triggered workers."""
