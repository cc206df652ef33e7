"""Tunnels: streams into a sandbox over a connection that the agent opened itself."""
