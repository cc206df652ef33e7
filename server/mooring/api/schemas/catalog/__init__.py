"""The catalog wing of the schemas: bodies and views of apps, versions, artifacts, policy and entitlements."""
