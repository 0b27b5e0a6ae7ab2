# SPDX-License-Identifier: Apache-2.0
"""Bring root disks from a file to a container's root, and back into the file when the VM does not run."""
