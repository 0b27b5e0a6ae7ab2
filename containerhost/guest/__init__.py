# SPDX-License-Identifier: Apache-2.0
"""Tell a container its own resources; the helper that listens there is here too."""
