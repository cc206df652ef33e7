"""Apps of the catalog that the workload adapter runs: each a manifest, and what its artifacts are made from."""
