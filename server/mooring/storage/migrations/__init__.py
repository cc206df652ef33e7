"""Forward-only, numbered migrations."""
