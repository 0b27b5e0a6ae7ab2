# SPDX-License-Identifier: Apache-2.0
"""Extend the corpora by fuzzing, and minimise them: the shortest inputs with the same coverage are kept.

    python -m tests.kernel.fuzz.grow SECONDS [NAME…]

SECONDS are for each parser. An input that a parser neither accepts nor refuses ends the run with libFuzzer's report;
correct the parser, and run it again to add the input to the corpus.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.commands import ROOT
from tests.kernel.fuzz import corpora
from tests.kernel.fuzz.parsers import PARSERS


def grow(name: str, seconds: str) -> tuple[int, int]:
    """Return how many inputs the corpus had and has."""
    kept = corpora.read(name)
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.executable, "-m", "tests.kernel.fuzz.targets", name, seconds, directory], cwd=ROOT,
                       env={"TMPDIR": directory, "PYTHONPATH": str(ROOT)}, timeout=int(seconds) + 120, check=True)
        found = [file.read_bytes() for file in Path(directory, "corpus").iterdir()]
    new = corpora.minimized(PARSERS[name], (*kept, *found))
    corpora.write(name, new)
    return len(kept), len(new)


if __name__ == "__main__":
    for grown in sys.argv[2:] or PARSERS:
        before, after = grow(grown, sys.argv[1])
        print(f"{grown}: {before} inputs, now {after}")
