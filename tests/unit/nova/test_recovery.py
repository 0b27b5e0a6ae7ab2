# SPDX-License-Identifier: Apache-2.0
from types import SimpleNamespace

import testtools
from nova import objects

from nova_lxd_ext.server.recovery import is_under_way


class MovesTest(testtools.TestCase):
    def test_a_move_that_is_over_is_not_taken_for_the_one_under_way(self) -> None:
        """A host keeps records of servers that have left it since."""
        before, now = objects.Migration(id=1), objects.Migration(id=2)
        for context, under_way in ((SimpleNamespace(migration_id=2), [now]), (None, [])):
            server = SimpleNamespace(migration_context=context)
            self.assertEqual(under_way, [move for move in (before, now) if is_under_way(server, move)])
