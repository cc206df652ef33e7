"""The kernel wing of the storage: connections, migrations, the unit of work, and the event stream."""
