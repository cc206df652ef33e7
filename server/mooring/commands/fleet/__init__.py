"""Use cases of the fleet wing: where it can run, and what happens there."""
