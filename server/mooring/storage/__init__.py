"""PostgreSQL and nothing else."""
