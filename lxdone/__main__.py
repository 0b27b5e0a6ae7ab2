# SPDX-License-Identifier: Apache-2.0
"""Run the command ``lxdone``, also as ``python -m lxdone``: see :mod:`lxdone.cli`."""

import functools
import sys

from lxdone import cli
from onedriver import program

main = functools.partial(program.start, cli.main)

if __name__ == "__main__":
    sys.exit(main())
