# SPDX-License-Identifier: Apache-2.0
"""Set Horizon up for tests; they are skipped where it is not installed, as with nova 33."""

import importlib.util
import os

import testtools


class HorizonCase(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        if importlib.util.find_spec("openstack_dashboard") is None:
            self.skipTest("Horizon is not installed: see horizon-requirements.txt")
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.unit.dashboard.settings")
        import django
        django.setup()
