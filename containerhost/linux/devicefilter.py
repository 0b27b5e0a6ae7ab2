# SPDX-License-Identifier: Apache-2.0
"""Set which devices the processes of a control group of version 2 may open.

The kernel asks the group's programs, all of which must agree (cgroup-v2.rst, "Device controller"; bpf(2)). Engines give
a container one, systemd perhaps another.

A verdict on an additional device is prepended to a program as a few recognizable instructions. So the rules of any
program stay, and additions are read back from it: no state is needed.
"""

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator, Mapping

from containerhost.errors import HostActionFailed
from containerhost.linux.files import closing

Number = tuple[int, int]

CALLS = {"x86_64": 321, "aarch64": 280}  # number of bpf(2)
# linux/bpf.h
LOAD, ATTACH, BY_ID, INFO, QUERY = 5, 8, 13, 15, 16
DEVICE_PROGRAM, DEVICES = 15, 6
MULTI, REPLACE = 2, 4
MOST = 64  # programs in one group
LENGTH = 20  # offset of the number of instructions in bpf_prog_info; 12 bytes later is their address
INFO_SIZE = 40
ATTRIBUTES = 128  # bytes of union bpf_attr; the largest of these calls

INSTRUCTION = struct.Struct("<BBhi")  # operation, registers, offset, number
SET, READ, AND, UNLESS, EXIT = 0xB7, 0x61, 0x57, 0x55, 0x95
MARK = 0x636F6E74
CHARACTER = 2  # in the low half of the first word of struct bpf_cgroup_dev_ctx; then major and minor
STEPS = 10  # instructions for one device

_libc = ctypes.CDLL(None, use_errno=True)


def decide(directory: str, number: Number, allowed: bool) -> None:
    """Permit or deny a character device, replacing any earlier verdict.

    :raises HostActionFailed: the group has no device program, or the kernel refuses
    """
    with _group(directory) as group:
        flags, programs = _programs(group)
        if not programs:
            raise HostActionFailed(f"no device program is attached to control group {directory}")
        for program in programs:
            _decide(group, flags, program, number, allowed)


def decided(directory: str) -> bool:
    """Return whether the group has its own program."""
    with _group(directory) as group:
        return bool(_programs(group)[1])


@contextlib.contextmanager
def _group(directory: str) -> Iterator[int]:
    try:
        with closing(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as group:
            yield group
    except OSError as error:
        raise HostActionFailed(f"the devices that {directory} may open cannot be changed: {error.strerror}") from error


def _decide(group: int, flags: int, program: int, number: Number, allowed: bool) -> None:
    with closing(_call(BY_ID, struct.pack("<I", program))) as old:
        verdicts, rest = parted(_instructions(old))
        if verdicts.get(number) == allowed:
            return
        with closing(_load(written({**verdicts, number: allowed}) + rest)) as new:
            # Without the flag MULTI the group has one program, so the old one is not named.
            _call(ATTACH, struct.pack("<5I", group, new, DEVICES, *((flags | REPLACE, old) if flags & MULTI else
                                                                    (flags, 0))))


# Instructions. Pure.


def written(verdicts: Mapping[Number, bool]) -> bytes:
    return b"".join(verdict(number, allowed) for number, allowed in sorted(verdicts.items()))


def verdict(number: Number, allowed: bool) -> bytes:
    """Return the instructions of a verdict; register 1 points to the kernel's request."""
    end = STEPS - 1
    steps = ((SET, 0, 0, MARK), (READ, 0x12, 0, 0), (AND, 2, 0, 0xFFFF), (UNLESS, 2, end - 3, CHARACTER),
             (READ, 0x12, 4, 0), (UNLESS, 2, end - 5, number[0]), (READ, 0x12, 8, 0), (UNLESS, 2, end - 7, number[1]),
             (SET, 0, 0, int(allowed)), (EXIT, 0, 0, 0))
    return b"".join(INSTRUCTION.pack(*step) for step in steps)


def parted(program: bytes) -> tuple[dict[Number, bool], bytes]:
    """Split a program into its verdicts and the remaining instructions."""
    verdicts: dict[Number, bool] = {}
    size = STEPS * INSTRUCTION.size
    while program[:INSTRUCTION.size] == INSTRUCTION.pack(SET, 0, 0, MARK):
        major, minor, allowed = (INSTRUCTION.unpack_from(program, place * INSTRUCTION.size)[3] for place in (5, 7, 8))
        verdicts[major, minor] = bool(allowed)
        program = program[size:]
    return verdicts, program


# The kernel.


def _programs(group: int) -> tuple[int, tuple[int, ...]]:
    """Return the flags of the group's device programs and their ids."""
    found = (ctypes.c_uint32 * MOST)()
    attributes = _room(struct.pack("<4IQI", group, DEVICES, 0, 0, ctypes.addressof(found), MOST))
    _bpf(QUERY, attributes)
    flags, _, count = struct.unpack_from("<IQI", attributes, 12)
    return flags, tuple(found[:count])


def _instructions(program: int) -> bytes:
    length = 0
    for _ in range(2):  # first read their number
        room = ctypes.create_string_buffer(max(length, 1))
        info = ctypes.create_string_buffer(INFO_SIZE)
        struct.pack_into("<I", info, LENGTH, length)
        struct.pack_into("<Q", info, LENGTH + 12, ctypes.addressof(room) if length else 0)
        _call(INFO, struct.pack("<2IQ", program, INFO_SIZE, ctypes.addressof(info)))
        (length,) = struct.unpack_from("<I", info, LENGTH)
    if not length or not struct.unpack_from("<Q", info, LENGTH + 12)[0]:
        raise HostActionFailed("the kernel does not show the program that decides which devices may be opened: "
                               "net.core.bpf_jit_harden must not be 2")
    return room.raw[:length]


def _load(instructions: bytes) -> int:
    """Load a program into the kernel."""
    code, license_ = ctypes.create_string_buffer(instructions, len(instructions)), ctypes.create_string_buffer(b"GPL")
    return _call(LOAD, struct.pack("<2IQQ2IQ2I", DEVICE_PROGRAM, len(instructions) // INSTRUCTION.size,
                                   ctypes.addressof(code), ctypes.addressof(license_), 0, 0, 0, 0, 0))


def _call(command: int, attributes: bytes) -> int:
    return _bpf(command, _room(attributes))


def _room(attributes: bytes) -> "ctypes.Array[ctypes.c_char]":
    return ctypes.create_string_buffer(attributes, ATTRIBUTES)


def _bpf(command: int, attributes: "ctypes.Array[ctypes.c_char]") -> int:
    """Call bpf(2).

    :raises OSError: the kernel refuses
    """
    machine = os.uname().machine
    if machine not in CALLS:
        raise HostActionFailed(f"how to change which devices a container may open is not known for {machine}")
    result: int = _libc.syscall(CALLS[machine], command, attributes, ATTRIBUTES)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
