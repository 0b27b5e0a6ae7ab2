# SPDX-License-Identifier: Apache-2.0
from unittest import mock

import testtools
from oslo_privsep import priv_context

from containerhost.errors import HostActionFailed
from containerhost.privileged import Inside, Privileged
from nova_lxd_ext import privsep


class PrivsepTest(testtools.TestCase):
    """The daemon runs inside this process here: what crosses to it and back is the same."""

    def setUp(self) -> None:
        super().setUp()
        privsep.context.set_client_mode(False)
        self.addCleanup(privsep.context.set_client_mode, True)

    def test_every_action_is_offered(self) -> None:
        own = {name for name in vars(privsep.Helper) if not name.startswith("_")}
        self.assertEqual(privsep.ACTIONS, own)

    def test_a_capability_that_root_lacks_is_not_asked_for(self) -> None:
        with mock.patch.object(privsep.Host, "lines", return_value=["Name:\tx", "CapBnd:\t000001fffeffffff"]):
            self.assertEqual(([], [12]), (privsep.of_this_machine(24), privsep.of_this_machine(12)))

    def test_arguments_cross_unchanged(self) -> None:
        calls = {"set_vf_guids": ("ibs1", 0, "a", "b"), "rename_netdev": ("a", "b"), "link_down_and_flush": ("a",),
                 "unbind": ("addr", "drv"), "bind": ("addr", "drv"), "reset": ("addr",),
                 "reset_gpu": ("vendor", "addr", ["addr"]),
                 "mark_reset": ("addr", {"aer_dev_fatal": 1}),
                 "set_vf_port": ("pf", 1, "mac", 7, True, None),
                 "set_vf_link": ("pf", 1, False), "set_vf_rate": ("pf", 1, 100),
                 "make_veth": ("a", "b", "mac", 1450, "mark", True),
                 "remove_veth": ("a",), "set_link": ("a", False), "enslave": ("a", "br"), "compute_checksums": ("a",),
                 "write_guest_file": (7, "resources.json", b"{}"), "end_helpers": (7,), "bind_cpus": (7, [0, 1]),
                 "kill_frozen": (7,),
                 "bind_memory": (7, [0, 1]),
                 "end_copies": ("c1",), "apparent_size": (7, "default", "c1", 60.0),
                 "shape": ("a", 1, 2, 3), "shape_sent": ("a", "ifb", 1, 2, 3), "unshape": ("a",),
                 "unshape_sent": ("a", "ifb"), "remove_shaper": ("ifb",)}
        for action, arguments in calls.items():
            with self.subTest(action), mock.patch.object(Privileged, action, autospec=True) as done:
                getattr(privsep.Helper(), action)(*arguments)
                self.assertEqual(arguments, done.call_args.args[1:])

    def test_results_that_crossed_as_lists_are_what_they_were(self) -> None:
        crossed = [{"/dev/nvidia0": [195, 0]}, ["lo", "ib0"], {"memlock": "unlimited"}]
        with mock.patch.object(privsep, "act", return_value=crossed):
            self.assertEqual(Inside({"/dev/nvidia0": (195, 0)}, ("lo", "ib0"), {"memlock": "unlimited"}),
                             privsep.Helper().inside(1))
        with mock.patch.object(privsep, "act", return_value=[[12, ["eth0 in network namespace /run/netns/x"]]]):
            self.assertEqual([(12, ("eth0 in network namespace /run/netns/x",))], privsep.Helper().stacked())
        with mock.patch.object(privsep, "act", return_value=["process 7"]):
            self.assertEqual(("process 7",), privsep.Helper().users([(195, 0)]))

    def test_file_of_a_guest_crosses_as_bytes(self) -> None:
        for found in (b"{}", None):
            with mock.patch.object(privsep, "act", return_value=found):
                self.assertEqual(found, privsep.Helper().read_guest_file(7, "ack.json"))

    def test_the_daemon_runs_nothing_else_and_checks_again(self) -> None:
        self.assertRaises(ValueError, privsep.act, "__init__")
        self.assertRaises(HostActionFailed, privsep.Helper().reset, "../../etc")

    def test_a_refusal_of_the_kernel_is_told_with_the_action(self) -> None:
        with mock.patch.object(Privileged, "kernel_log", side_effect=PermissionError(1, "not permitted", "/dev/kmsg")):
            error = self.assertRaises(HostActionFailed, privsep.Helper().kernel_log)
        self.assertIn("kernel_log failed: [Errno 1] not permitted: '/dev/kmsg'", str(error))

    def test_root_acts_itself(self) -> None:
        for uid, expected in ((0, Privileged), (1000, privsep.Helper)):
            with self.subTest(uid=uid), mock.patch("os.geteuid", return_value=uid):
                self.assertIs(expected, type(privsep.privileged()))

    def test_the_daemon_can_be_found(self) -> None:
        self.assertIsInstance(privsep.context, priv_context.PrivContext)
        self.assertEqual("nova_lxd_ext.privsep.context", privsep.context.pypath)
