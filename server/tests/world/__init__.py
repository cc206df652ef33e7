"""A simulated world on the real storage: one step at a time, on a virtual clock, from a seed."""
