"""The kernel wing of the use cases: how every mutation is executed."""
