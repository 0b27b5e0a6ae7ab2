# SPDX-License-Identifier: Apache-2.0
"""Feed the parsers of what others write with all that the fuzzer has found."""

import testtools

from tests.kernel.fuzz import corpora
from tests.kernel.fuzz.parsers import PARSERS

LARGEST = 200_000  # bytes of all corpora


class CorporaTest(testtools.TestCase):
    def test_each_input_is_taken_or_refused(self) -> None:
        for name, parser in PARSERS.items():
            inputs = corpora.read(name)
            self.assertNotEqual((), inputs, name)
            for data in (*parser.seeds, *inputs):
                try:
                    corpora.feed(parser, data)
                except Exception as error:
                    self.fail(f"{name}: {data!r}: {type(error).__name__}: {error}")

    def test_small(self) -> None:
        sizes = {file.name: file.stat().st_size for file in corpora.DIRECTORY.iterdir()}
        self.assertEqual(len(PARSERS), len(sizes))
        self.assertLess(sum(sizes.values()), LARGEST)

    def test_inputs_are_written_as_they_are(self) -> None:
        for data in (b"", b"a\n'", b"\xff" * 300, bytes(range(256))):
            self.assertEqual(data, corpora.loaded(corpora.dumped(data)))
