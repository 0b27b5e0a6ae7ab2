# SPDX-License-Identifier: Apache-2.0
"""Keep, for each parser, the inputs that together reach all that the fuzzer has reached.

    python -m tests.kernel.fuzz.corpora [NAME]

feeds those of one parser, or of all, to it. They are lines of a text file for each parser: text as Python writes it,
what is mostly not text compressed.
"""

import ast
import base64
import contextlib
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tests.kernel.fuzz.parsers import PARSERS, Parser

DIRECTORY = Path(__file__).with_name("corpora")
LARGEST = 4096  # bytes of an input
PACKED = "zlib "


def read(name: str) -> tuple[bytes, ...]:
    """Return a parser's inputs; none if it has no file yet."""
    file = _file(name)
    return tuple(map(loaded, file.read_text().splitlines())) if file.exists() else ()


def write(name: str, inputs: Iterable[bytes]) -> None:
    DIRECTORY.mkdir(exist_ok=True)
    _file(name).write_text("".join(f"{dumped(data)}\n" for data in sorted(inputs, key=lambda data: (len(data), data))))


def feed(parser: Parser, data: bytes) -> None:
    """Let a parser take or refuse an input.

    :raises Exception: it does neither
    """
    with contextlib.suppress(*parser.refusals):
        parser.parse(data)


def minimized(parser: Parser, inputs: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return those inputs that take a step between two lines, or take it more often, than the parser's seeds and all
    shorter ones."""
    reached = set[Any]().union(*(_steps(parser, seed) for seed in parser.seeds))
    kept = []
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        new = _steps(parser, data) - reached if len(data) <= LARGEST else set()
        if new:
            reached |= new
            kept.append(data)
    return tuple(kept)


def _steps(parser: Parser, data: bytes) -> set[Any]:
    """Return the steps that the parser takes, each with the powers of two of how often."""
    counts = Counter[Any]()
    last: dict[FrameType, int] = {}

    def note(frame: FrameType, event: str, _: Any) -> Any:
        counts[frame.f_code.co_filename, event, last.get(frame), frame.f_lineno] += 1
        last[frame] = frame.f_lineno
        return note
    sys.settrace(note)
    try:
        feed(parser, data)
    finally:
        sys.settrace(None)
    return {(step, count.bit_length()) for step, count in counts.items()}


def _file(name: str) -> Path:
    return DIRECTORY / f"{re.sub('[^a-z]+', '-', name.lower())}.txt"


def dumped(data: bytes) -> str:
    text = repr(data)
    return text if len(text) < 2 * len(data) + 8 else PACKED + base64.b64encode(zlib.compress(data, 9)).decode()


def loaded(line: str) -> bytes:
    if line.startswith(PACKED):
        return zlib.decompress(base64.b64decode(line.removeprefix(PACKED)))
    data = ast.literal_eval(line)
    assert isinstance(data, bytes), line
    return data


def _feed_all(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    for name in names:
        inputs = read(name)
        for data in inputs:
            feed(PARSERS[name], data)
        yield name, len(inputs)


if __name__ == "__main__":
    for fed, count in _feed_all(sys.argv[1:] or PARSERS):
        print(f"{count:5} {fed}")
