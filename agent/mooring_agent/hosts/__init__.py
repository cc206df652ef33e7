"""Where things run: each host performs the same contract with another degree of isolation."""
