"""Use cases of the records wing: what happened."""
