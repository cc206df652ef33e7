"""The relay: connects viewers with nodes, because nothing can connect to a node directly."""
