# SPDX-License-Identifier: Apache-2.0
"""Jobs and files for tests."""

from hpcjob.job import Job, parse

TEXT = """
name: wave
members: 4
groups: 2
slots: 2
timeout: 30
openstack: {image: IMG-1, flavor: FL-1, network: NET-1}
opennebula: {template: 7}
"""


def job(**changes: object) -> Job:
    lines = [line for line in TEXT.splitlines() if line.partition(":")[0] not in changes]
    return parse("\n".join(lines + [f"{key}: {value}" for key, value in changes.items()]))


class Clock:
    """Time that passes only in ``sleep``."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
