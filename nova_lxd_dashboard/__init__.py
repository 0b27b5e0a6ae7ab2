# SPDX-License-Identifier: Apache-2.0
"""Horizon's panels "Accelerators": for administrators the devices of all hosts, for tenants those of their servers."""
