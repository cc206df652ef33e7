"""The catalog wing of the use cases: apps, versions, artifacts, policy and entitlements."""
