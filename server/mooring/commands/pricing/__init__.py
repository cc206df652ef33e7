"""Use cases of the pricing wing: what it would cost, and may cost."""
