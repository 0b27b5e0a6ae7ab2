# SPDX-License-Identifier: Apache-2.0
"""Show Horizon's panels "Accelerators": all hosts' devices for administrators, their servers' for tenants."""
