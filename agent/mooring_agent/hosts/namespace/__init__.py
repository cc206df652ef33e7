"""The namespace host: one sandbox of kernel namespaces per allocation, created by root, with its own root directory."""

from mooring_agent.hosts.namespace.host import NamespaceHost

__all__ = ["NamespaceHost"]
