# SPDX-License-Identifier: Apache-2.0
"""Enable the panels: files that an operator copies into Horizon's ``openstack_dashboard/local/enabled``."""
