# SPDX-License-Identifier: Apache-2.0
"""Quotas of devices by keystone's unified limits, as far as nova counts them: what doc/source/quotas.md says."""

from tests.functional.nova import base  # isort: skip (decides how nova runs)

from typing import ClassVar

from nova.scheduler import utils as scheduler_utils
from nova.tests.functional.api.client import OpenStackApiException
from oslo_limit import fixture

from containerhost.devices.model import Kind
from tests import levels

LIMITS = {"servers": 10, "class:VCPU": 20, "class:MEMORY_MB": 51200, "class:DISK_GB": 100}


class QuotaTest(base.LxdServers):
    pci_in_placement = True
    options: ClassVar = {(None, "allow_resize_to_same_host"): True}

    def setUp(self) -> None:
        super().setUp()
        if not hasattr(scheduler_utils, "request_spec_for_limits"):
            self.skipTest("nova counts devices of aliases from release 34 on")
        gpu = next(device for device in self.devices_before if device.kind is Kind.GPU)
        self.resource = "class:" + f"CUSTOM_PCI_{gpu.vendor_id}_{gpu.product_id}".upper()
        self.flags(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        self.useFixture(fixture.LimitFixture({**LIMITS, self.resource: 1}, {}))
        self.with_gpu = self.flavor(pci_passthrough__alias=f"{base.GPU_ALIAS}:1")

    def test_second_gpu_refused_while_it_is_free(self) -> None:
        first = self.server(self.with_gpu)
        error = self.assertRaises(OpenStackApiException, self.server, self.with_gpu)
        self.assertEqual(403, error.response.status_code)
        self.assertIn(self.resource, error.response.text)
        self._delete_server(first)
        self._delete_server(self.server(self.with_gpu))
        self.assert_nothing_left()

    @levels.exhaustive("test_second_gpu_refused_while_it_is_free has the limit; nova alone counts at a resize")
    def test_nova_counts_no_gpu_of_a_resize(self) -> None:
        first, second = self.server(self.with_gpu), self.server()
        self._resize_server(second, self.with_gpu)
        self._confirm_resize(second)
        self.assertEqual({first["id"], second["id"]}, set(self.held().values()))
        for server in (first, second):
            self._delete_server(server)
        self.assert_nothing_left()
