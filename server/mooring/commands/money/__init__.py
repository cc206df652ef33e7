"""Use cases of the money wing: what it cost."""
