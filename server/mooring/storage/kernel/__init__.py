"""SQL of the kernel wing: what everything is made of."""
