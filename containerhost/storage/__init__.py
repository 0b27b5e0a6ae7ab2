# SPDX-License-Identifier: Apache-2.0
"""Disks, mounts and block devices of the host, for containers."""
