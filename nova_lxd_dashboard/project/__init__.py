# SPDX-License-Identifier: Apache-2.0
"""The tenants' panel: which of the project's servers have which devices."""
