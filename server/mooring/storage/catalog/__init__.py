"""The catalog wing of the storage: reads of apps, versions, artifacts, policy and entitlements."""
