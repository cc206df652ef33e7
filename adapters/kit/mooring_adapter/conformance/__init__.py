"""The conformance suite: plays the platform's worst day against any adapter program.

`python -m mooring_adapter.conformance --manifest manifest.json -- <command>`, or `mooring adapter test`. The platform
that it plays is simulated and says so; the same scenarios run against a real one through
`under_test.PlatformUnderTest`.
"""
