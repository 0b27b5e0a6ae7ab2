# SPDX-License-Identifier: Apache-2.0
"""Feed any bytes to a parser of what others write.

    python -m tests.kernel.fuzz.targets [NAME SECONDS DIRECTORY [--strict]]

A parser takes its input or refuses it with its own error; anything else ends the program with status 77, and libFuzzer
(by atheris) leaves the input in DIRECTORY, where its corpus is too: it begins with the one that is kept (``corpora``).
With ``--strict`` the parser's own error ends it too, which shows that its refusals are reached. Without arguments: the
parsers' names, and whether they refuse anything, as JSON. No test imports this module, because atheris instruments what
it imports.
"""

import contextlib
import json
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["containerhost", "hpcjob", "lxdone", "onedock", "onedriver", "tarfile"]):
    from tests.kernel.fuzz import corpora
    from tests.kernel.fuzz.parsers import PARSERS

FOUND = 77  # status of a program that found something


def main(name: str, seconds: str, directory: str, *options: str) -> None:
    parser, strict = PARSERS[name], "--strict" in options
    corpus = Path(directory, "corpus")
    corpus.mkdir(exist_ok=True)
    for seed in parser.seeds:
        parser.parse(seed)
    # Not to the strict run: it has to find a refusal by itself.
    for number, data in enumerate(parser.seeds if strict else (*parser.seeds, *corpora.read(name))):
        (corpus / f"seed{number}").write_bytes(data)

    def parse(data: bytes) -> None:
        with contextlib.suppress(*() if strict else parser.refusals):
            parser.parse(data)
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048", "-max_len=65536",
                   f"-error_exitcode={FOUND}", f"-artifact_prefix={directory}/", "-verbosity=0", str(corpus)], parse)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    else:
        print(json.dumps({name: bool(parser.refusals) for name, parser in PARSERS.items()}))
