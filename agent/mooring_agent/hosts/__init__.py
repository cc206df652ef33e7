"""Hosts: implementations of one contract with different degrees of isolation."""
