"""Bodies and views of the records wing: what happened."""
