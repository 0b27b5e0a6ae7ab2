# SPDX-License-Identifier: Apache-2.0
"""Control groups that a container's root nests below its own, deeper than a path reaches."""

import subprocess

PYTHON = "/usr/bin/python3"  # a container's root may start it, whichever user runs the tests
DEPTH = 18  # of names with 250 letters; a path has at most 4096 bytes

NEST = """
import os, sys
fd = os.open(sys.argv[1], os.O_DIRECTORY)
for level in range(int(sys.argv[2])):
    name = f"{level:0250}"
    os.mkdir(name, dir_fd=fd)
    below = os.open(name, os.O_DIRECTORY, dir_fd=fd)
    for file in sys.argv[3:]:
        with open(file, opener=lambda path, flags: os.open(path, flags, dir_fd=fd)) as there:
            text = there.read()
        with open(file, "w", opener=lambda path, flags: os.open(path, os.O_WRONLY, dir_fd=below)) as here:
            here.write(text)
    fd = below
os.fchdir(fd)
"""


def nested(pid: int, group: str, depth: int, *files: str, then: str = "") -> "subprocess.Popen[bytes]":
    """Make groups as a container's root: busybox's shell goes no deeper than a path reaches.

    :param pid: the container's first process
    :param group: directory of its group
    :param files: attributes of each group that the next one gets
    :param then: a Python program that goes on in the deepest group
    """
    enter = ["nsenter", "--target", str(pid), "--user", "--pid", "--"]
    return subprocess.Popen([*enter, PYTHON, "-c", NEST + then, group, str(depth), *files],
                            stdout=subprocess.PIPE)
