"""The kernel wing of the core: lifecycles, decisions, errors, ids, permissions and validation for all other wings."""
