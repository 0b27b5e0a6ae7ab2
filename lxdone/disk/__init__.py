# SPDX-License-Identifier: Apache-2.0
"""Handle disks as files: their formats, what is in them, and how they come into a container."""
