# SPDX-License-Identifier: Apache-2.0
"""Manage disks, mounts and block devices of the host, for containers."""
