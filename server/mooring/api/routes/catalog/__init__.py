"""Endpoints of the catalog wing: apps, versions, artifacts, policy and entitlements."""
