# SPDX-License-Identifier: Apache-2.0
"""Settings: files that an operator copies into Horizon's ``openstack_dashboard/local/local_settings.d``."""
