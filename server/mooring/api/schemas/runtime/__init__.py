"""Bodies and views about what is running."""
