"""Federated rounds on one machine or a cluster: the driver, engines, virtual time, many runs as one computation."""
