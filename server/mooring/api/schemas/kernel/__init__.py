"""The kernel wing of the schemas: field types that all bodies and views share."""
