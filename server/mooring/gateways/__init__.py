"""Systems outside of us: time, chance, secrets, telemetry, the network."""
