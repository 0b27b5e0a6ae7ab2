"""Disks, mounts and block devices of the host, for containers."""
