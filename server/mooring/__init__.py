"""Mooring's control plane."""
