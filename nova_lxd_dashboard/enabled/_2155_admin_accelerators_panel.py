# SPDX-License-Identifier: Apache-2.0
"""Add the panel "Accelerators" to the group "Compute" of the dashboard "Admin"."""

PANEL = "accelerators"
PANEL_DASHBOARD = "admin"
PANEL_GROUP = "compute"
ADD_PANEL = "nova_lxd_dashboard.admin.panel.Accelerators"
ADD_INSTALLED_APPS = ["nova_lxd_dashboard"]
