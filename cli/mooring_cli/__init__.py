"""The `mooring` command: people's and scripts' way to the API, over the SDK and nothing else."""
