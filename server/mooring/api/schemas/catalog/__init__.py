"""Bodies and views of the catalog wing: what can be launched, and whether it can be trusted."""
