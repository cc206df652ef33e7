"""SQL of the records wing: what happened."""
