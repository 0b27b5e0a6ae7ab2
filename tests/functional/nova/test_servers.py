"""A server's life by nova's API on the real LXD."""

from tests.functional.nova import base


class LifeTest(base.LxdServers):
    def test_boot_and_delete(self) -> None:
        server = self.server()
        self.assertEqual("running", self.container(server).status)
        self._delete_server(server)
        self.assert_nothing_left()
