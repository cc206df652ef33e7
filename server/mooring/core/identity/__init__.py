"""The identity wing of the core: tenants, projects, users, service accounts, tokens, and what each caller may do."""
