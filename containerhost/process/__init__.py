"""Processes of the host and of containers, and their limits."""
