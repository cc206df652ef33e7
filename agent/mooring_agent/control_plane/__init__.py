"""What the agent and the platform say to each other: messages, keys, addresses and the HTTP client."""
