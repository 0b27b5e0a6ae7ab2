# SPDX-License-Identifier: Apache-2.0
"""Show Horizon's panels "Accelerators": for administrators devices of all hosts, for tenants those of their servers."""
