"""Benchmarks: how much of what PostgreSQL could do reaches a caller of the API, and where the rest goes.

`python -m bench` starts a throwaway PostgreSQL with production settings and one server process on it
(`bench_platform`), and measures both in alternating rounds: the API under its own load (`load`), and `pgbench`
running the very statements that the server sends (`pgbench`). The second lock (`second_lock`), the event streams
(`streams`) and the database driver alone (`driver`) are measured on the same platform. Every figure comes out of the
run that prints it.
"""
