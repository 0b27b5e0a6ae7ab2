# SPDX-License-Identifier: Apache-2.0
import base64
import random

import testtools
from lxml import etree

from onedriver import monitor, template
from onedriver.monitor import Message, Type
from tests.unit.onedriver import frontend


class TemplateTest(testtools.TestCase):
    def test_values_are_quoted(self) -> None:
        self.assertEqual('A="1"\nB="a \\"b\\" \\\\"\nC="two lines"\nD=""',
                         template.lines({"A": 1, "B": 'a "b" \\', "C": "two\nlines", "D": None}))

    def test_a_vector_leaves_out_what_has_no_value(self) -> None:
        self.assertEqual('PCI=[ ADDRESS="0000:17:00:0", NUMA_NODE="0" ]',
                         template.vector("PCI", {"ADDRESS": "0000:17:00:0", "UUID": None, "NUMA_NODE": 0}))

    def test_encoded_lines(self) -> None:
        self.assertEqual(b'CPU="1"\n', base64.b64decode(template.encoded({"CPU": 1})))


class MonitorTest(testtools.TestCase):
    def test_a_message_there_and_back(self) -> None:
        for text in ("", 'USEDCPU="12"\n', "ü" * 1000):
            for success in (True, False):
                message = Message(Type.MONITOR_HOST, success, 3, 1795247695, text)
                self.assertEqual(message, frontend.read(monitor.wire(message)))

    def test_the_wire(self) -> None:
        data = monitor.wire(Message(Type.STATE_VM, True, -1, 5, "x"))
        self.assertTrue(data.startswith(b"STATE_VM SUCCESS -1 5 eJ") and data.endswith(b"\n"))

    def test_a_list_of_vms_that_is_too_long_for_a_datagram_is_cut_between_lines(self) -> None:
        lines = [random.Random(number).randbytes(300).hex() for number in range(500)]
        parts = monitor.datagrams(Message(Type.MONITOR_VM, True, 3, 5, "\n".join(lines)))
        self.assertGreater(len(parts), 1)
        self.assertLessEqual(max(map(len, parts)), monitor.DATAGRAM_LIMIT)
        self.assertEqual(lines, "\n".join(frontend.read(part).text for part in parts).splitlines())
        for kind, text in ((Type.SYSTEM_HOST, "\n".join(lines)), (Type.MONITOR_VM, "x")):
            whole = Message(kind, True, 3, 5, text)
            self.assertEqual([monitor.wire(whole)], monitor.datagrams(whole))

    def test_the_answer_to_the_start(self) -> None:
        answer = etree.fromstring(monitor.answer([("SYSTEM_HOST", 'A="<1>"'), ("STATE_VM", "")], 17))
        self.assertEqual(("MONITOR_MESSAGES", "17"), (answer.tag, answer.findtext("TIMESTAMP")))
        self.assertEqual(b'A="<1>"', base64.b64decode(answer.findtext("SYSTEM_HOST")))
