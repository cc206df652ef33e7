"""The conformance suite: runs any adapter program against a simulated platform that misbehaves.

`python -m mooring_adapter.conformance --manifest manifest.json -- <command>`, or `mooring adapter test`. The same
scenarios run against a real platform through `platform_protocol.PlatformUnderTest`.
"""
