# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys

import testtools

ENVIRONMENT = {**os.environ, "OS_NOVA_DISABLE_EVENTLET_PATCHING": "1"}


def python(code: str) -> str:
    """A process of its own: what is under test is what an interpreter has imported."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120,
                          env=ENVIRONMENT, check=False)
    return done.stdout.strip() if done.returncode == 0 else done.stderr


class HookTest(testtools.TestCase):
    def test_loading_it_imports_no_nova_and_nothing_outside_the_standard_library(self) -> None:
        code = ("import sys; import nova_lxd_ext.osvif_hook; "
                "print(sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)"
                " - {'nova_lxd_ext', '__main__', 'sitecustomize', '_distutils_hack'}))")
        found = python(code)
        self.assertNotIn("'nova'", found)
        self.assertNotIn("os_vif", found)
        self.assertNotIn("containerhost", found)

    def test_nova_loads_the_driver_by_its_name(self) -> None:
        code = ("import nova_lxd_ext.osvif_hook; from nova import objects; objects.register_all(); "
                "from oslo_utils import importutils; print(importutils.import_class('nova.virt.lxd.LXDDriver'))")
        self.assertEqual("<class 'nova_lxd_ext.driver.LXDDriver'>", python(code))

    def test_other_missing_modules_stay_missing(self) -> None:
        self.assertIn("ModuleNotFoundError", python("import nova_lxd_ext.osvif_hook; import nova.virt.lxd2"))

    def test_is_put_in_place_once(self) -> None:
        code = ("import sys; from nova_lxd_ext import osvif_hook; osvif_hook.install(); "
                "print(sum(isinstance(finder, osvif_hook.DriverFinder) for finder in sys.meta_path))")
        self.assertEqual("1", python(code))

    def test_os_vif_can_load_and_describe_it(self) -> None:
        code = ("import os_vif.objects; os_vif.objects.register_all(); from nova_lxd_ext.osvif_hook import Hook; "
                "print(Hook.load('nova_lxd_ext').describe().plugin_name)")
        self.assertEqual("nova_lxd_ext", python(code))
