"""Endpoints of the identity wing: tenants, projects, users, memberships, service accounts, tokens and sign-in."""
