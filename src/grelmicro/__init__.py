"""Coordinate services that run as many replicas."""
