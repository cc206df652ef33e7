"""Decisions about what is running: instances, members, operations, claims, attachments and visits."""
