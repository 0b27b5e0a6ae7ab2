# SPDX-License-Identifier: Apache-2.0
import inspect
from unittest import mock

import testtools
from nova import exception

from nova_lxd_ext.unsupported import UnsupportedMethods

EXPECTED = (NotImplementedError, exception.NovaException)


class UnsupportedTest(testtools.TestCase):
    def test_each_is_refused_with_words_of_its_own(self) -> None:
        driver = UnsupportedMethods(None)
        refused = [name for name, _ in inspect.getmembers(UnsupportedMethods, inspect.isfunction) if name
                   in vars(UnsupportedMethods)]
        self.assertIn("get_vnc_console", refused)
        for name in refused:
            with self.subTest(name):
                method = getattr(driver, name)
                arguments = [mock.Mock(uuid="8f2b6a0c") for _ in inspect.signature(method).parameters]
                error = self.assertRaises(EXPECTED, method, *arguments)
                self.assertGreater(len(str(error).split()), 4)
