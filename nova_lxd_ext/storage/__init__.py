# SPDX-License-Identifier: Apache-2.0
"""Cinder's volumes, ephemeral disks, the config drive: a server's disks beside its root."""
