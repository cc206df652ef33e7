"""Code made from the OpenAPI document: the SDK's models, methods and exceptions, and the CLI's table of
commands.
"""
