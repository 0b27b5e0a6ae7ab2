# SPDX-License-Identifier: Apache-2.0
"""Add the panel "Accelerators" to the group "Compute" of the dashboard "Project".

The file for "Admin" names the application.
"""

PANEL = "accelerators"
PANEL_DASHBOARD = "project"
PANEL_GROUP = "compute"
ADD_PANEL = "nova_lxd_dashboard.project.panel.Accelerators"
