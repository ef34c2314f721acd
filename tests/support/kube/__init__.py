"""API servers for the Kubernetes tests: a strict one for Leases in this process, and the real one."""
