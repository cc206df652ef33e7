"""Artifacts on a node: a content-addressed cache, and the HTTP sources that fill it."""
