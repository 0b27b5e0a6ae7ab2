# SPDX-License-Identifier: Apache-2.0
"""Handle disks as files: their formats, contents, and attachment to containers."""
