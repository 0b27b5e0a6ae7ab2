# SPDX-License-Identifier: Apache-2.0
"""Files that an operator copies into Horizon's ``openstack_dashboard/local/enabled``."""
