"""Bodies and views of the money wing: what it cost."""
