# SPDX-License-Identifier: Apache-2.0
import base64
import io

import testtools

from onedriver import document
from onedriver.errors import BadInput
from tests.unit.onedriver.samples import sample

BOMB = b'<!DOCTYPE VM [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><VM><ID>&b;</ID></VM>'
LEAK = b'<!DOCTYPE VM [<!ENTITY x SYSTEM "file:///etc/passwd">]><VM><NAME>&x;</NAME></VM>'


class InputTest(testtools.TestCase):
    def test_all_of_it_up_to_a_limit(self) -> None:
        largest = b"<VM/>".ljust(document.INPUT_LIMIT)
        self.assertEqual(largest, document.read(io.BytesIO(largest)))
        endless = io.BytesIO(bytes(3 * document.INPUT_LIMIT))
        self.assertIn("more than 12 MiB", str(self.assertRaises(BadInput, document.read, endless)))
        self.assertLess(endless.tell(), 2 * document.INPUT_LIMIT)


class DocumentTest(testtools.TestCase):
    def refused(self, data: bytes, root: str = "VM") -> str:
        return str(self.assertRaises(BadInput, document.parse_either, data, root))

    def test_recorded_documents_are_read(self) -> None:
        self.assertEqual("1", document.parse(sample("deployment.xml"), "VM").findtext("ID"))
        message = document.parse_either(sample("cancel.base64"), "VMM_DRIVER_ACTION_DATA")
        self.assertEqual("8", message.findtext("VM/ID"))

    def test_a_document_cut_anywhere_is_refused(self) -> None:
        whole = sample("deployment.xml").rstrip()
        for length in [*range(0, len(whole), 97), len(whole) - 1]:
            self.assertIn("standard input", self.refused(whole[:length]))

    def test_a_cut_by_a_line_eot_says_what_to_do(self) -> None:
        self.assertIn("remove that line from the template", self.refused(b"<VM><NAME>a\n"))

    def test_entities_and_document_types_are_refused(self) -> None:
        for data in (BOMB, LEAK, b"<!DOCTYPE VM><VM/>"):
            self.assertIn("standard input", self.refused(data))

    def test_other_documents_are_refused(self) -> None:
        for data, words in ((b"", "is empty"), (b"  \n", "is empty"), (b"<HOST/>", "is <HOST>, not <VM>"),
                            (b"!!", "is not base64"), (base64.b64encode(b"nothing"), "not a complete XML"),
                            (b"<VM>" + b" " * document.LIMIT + b"</VM>", "larger than 8 MiB"),
                            (b"<VM>\xff</VM>", "not a complete XML"), (b"<VM/><VM/>", "not a complete XML")):
            self.assertIn(words, self.refused(data))
