# SPDX-License-Identifier: Apache-2.0
"""Provide settings: files that an operator copies into Horizon's ``openstack_dashboard/local/local_settings.d``."""
