"""Bodies and views of the pricing wing: what it would cost, and may cost."""
