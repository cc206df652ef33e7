"""TLS: the certificate that the platform serves, and the authorities that issue certificates."""
