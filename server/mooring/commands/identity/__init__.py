"""The identity wing of the use cases: tenants, projects, users, service accounts, tokens and sign-in."""
