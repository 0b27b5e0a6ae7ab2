# SPDX-License-Identifier: Apache-2.0
"""Manage a server's disks besides its root: Cinder's volumes, ephemeral disks, the config drive."""
