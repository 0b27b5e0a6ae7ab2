# SPDX-License-Identifier: Apache-2.0
"""Tempest, OpenStack's own integration tests, against the driver on a cloud of :mod:`tools.cloud`."""
