"""The SQL that reads what is running: instances, members, operations, claims, attachments and visits."""
