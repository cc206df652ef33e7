"""The relay: where viewers and nodes meet, since nothing dials into a node."""
