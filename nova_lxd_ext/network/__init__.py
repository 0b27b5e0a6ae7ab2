"""Neutron's ports as interfaces of a container."""
