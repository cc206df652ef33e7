"""What lives as long as the process: brokers, dispatchers, runners. Not use cases."""
