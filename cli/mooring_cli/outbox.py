"""The outbox: what is delivered to webhooks, and what could not be and waits for a replay."""
