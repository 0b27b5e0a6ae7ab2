# SPDX-License-Identifier: Apache-2.0
"""What a container is told of its own resources, and the helper that listens there."""
