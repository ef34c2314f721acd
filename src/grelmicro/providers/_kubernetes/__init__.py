"""How the Kubernetes adapters talk to an API server, and judge the Leases that they find there."""
