# SPDX-License-Identifier: Apache-2.0
"""Bring root disks from files to containers' roots, and back while the VMs are not running."""
