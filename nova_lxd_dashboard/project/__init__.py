# SPDX-License-Identifier: Apache-2.0
"""Show tenants which of the project's servers have which devices."""
