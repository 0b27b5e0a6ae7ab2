# SPDX-License-Identifier: Apache-2.0
"""Run the command ``onedock``, also as ``python -m onedock``: see :mod:`onedock.cli`."""

import functools
import sys

from onedock import cli
from onedriver import program

main = functools.partial(program.start, cli.main)

if __name__ == "__main__":
    sys.exit(main())
