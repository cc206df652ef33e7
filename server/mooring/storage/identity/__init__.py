"""The identity wing of the storage: reads of tenants, projects, users, service accounts, tokens and keys."""
