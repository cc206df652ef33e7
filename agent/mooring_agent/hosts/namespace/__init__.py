"""The namespace host: a sandbox of kernel namespaces per allocation, made by root, with a root directory of its own."""

from mooring_agent.hosts.namespace.host import NamespaceHost

__all__ = ["NamespaceHost"]
