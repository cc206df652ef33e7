"""The catalog wing of the core: apps, versions, artifacts, policy and entitlements."""
