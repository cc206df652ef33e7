"""Use cases: load, decide, apply; the only writers, shared by the API and the workers."""
