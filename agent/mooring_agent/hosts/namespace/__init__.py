"""The namespace host: one sandbox of kernel namespaces per allocation, made by root, with a root directory of its own."""
