"""Objects that live as long as the process: brokers, dispatchers, runners; not use cases."""
