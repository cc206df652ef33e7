"""Bodies and views of the runtime wing: what is running."""
