"""Code generated from the OpenAPI document: the SDK's models, table of operations, stubs and exceptions, and the
CLI's table of nouns.
"""
