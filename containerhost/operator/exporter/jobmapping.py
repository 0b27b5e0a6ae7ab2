# SPDX-License-Identifier: Apache-2.0
"""Report to dcgm-exporter which container has which GPU, by the files of its ``--hpc-job-mapping-dir``.

Source: README of dcgm-exporter, "How to include HPC jobs in metric labels": a file for each GPU, named by the number
of the GPU, with the ids of its jobs, one a line. They become the label ``hpc_job``. The format does not support
slices: the containers of a GPU's slices and shares are jobs of the GPU.
"""

from pathlib import Path

from containerhost.linux.files import Directory
from containerhost.operator.exporter.sample import Sample


def jobs(sample: Sample) -> dict[str, tuple[str, ...]]:
    """Return the containers of each GPU with a known number, by that number. Pure."""
    numbers = {device_id: use.number for device_id, use in sample.uses.items() if use.number is not None}
    found: dict[str, list[str]] = {str(number): [] for number in numbers.values()}
    for record in (sample.records or {}).values():
        number = numbers.get(record.device_id.partition("/")[0])
        if number is not None and record.blocked is None:
            found[str(number)].append(record.consumer.container)
    return {number: tuple(sorted(set(containers))) for number, containers in found.items()}


def write(path: Path, wanted: dict[str, tuple[str, ...]]) -> None:
    """Write a file for each GPU that has jobs into the directory. Files whose name is not a number are left alone.

    :raises OSError: the directory cannot be written
    """
    with Directory(path) as directory:
        there = {name for name in directory.names() if name.isascii() and name.isdigit()}
        for number, containers in wanted.items():
            content = "".join(f"{container}\n" for container in containers).encode()
            if content and (number not in there or directory.read(number) != content):
                directory.write(number, content, 0o644)
        for number in there - {number for number, containers in wanted.items() if containers}:
            directory.unlink(number)
