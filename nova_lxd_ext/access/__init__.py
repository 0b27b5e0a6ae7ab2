"""Consoles and passwords."""
