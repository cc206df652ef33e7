"""The pure core: nouns, lifecycles, decisions; no clock, no I/O."""
