"""The identity wing of the schemas: bodies and views of tenants, projects, users, service accounts and tokens."""
