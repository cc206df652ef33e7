"""Endpoints about what is running: instances, members, operations, adapters, attachments and visits."""
