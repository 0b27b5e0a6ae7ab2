# SPDX-License-Identifier: Apache-2.0
"""The templates that come with the driver: each is one, and a VM of it runs and has what it says."""

import io
import tarfile

from tests import levels
from tests.functional_docker.dockerd import root_file_system
from tests.functional_one.node import BRIDGE
from tests.functional_one.vms import Machine
from tests.functional_onedock import samples
from tests.functional_onedock.base import OnedockCase
from tests.waiting import await_that

IMAGE = "applications"
# Replaces the applications: each prints its arguments, and keeps running.
PROGRAM = b"#!/bin/sh\necho \"$0 $*\"\ntrap 'exit 0' TERM\nwhile :; do sleep 1000 & wait $!; done\n"
PROGRAMS = ("bin/nginx", "bin/python3", "usr/sbin/sshd")
TIMEOUT = 30  # s


class SamplesTest(OnedockCase):
    inline = False

    def setUp(self) -> None:
        super().setUp()
        self.node.docker.daemon.api().import_image_from_data(applications(), repository=IMAGE, tag="latest")
        self.addCleanup(self.node.docker.daemon.api().remove_image, IMAGE)

    def started(self, file: str, number: int = 1, free: int = 0) -> Machine:
        """:param free: how many functions of the host are taken"""
        template = samples.read(file)
        machine = samples.machine(template, [*self.gpus, *self.vfs[free:]], number)
        for place in range(1, len(template.all("DISK"))):
            self.node.give_file_system(machine, place)
        return self.deployed(machine, image=IMAGE)

    def test_every_sample_is_a_template(self) -> None:
        for file in sorted(samples.DIRECTORY.glob("*.tmpl")):
            self.assertIn("NAME", samples.read(file.name).single, file)

    @levels.exhaustive("the samples with devices stay")
    def test_a_web_server(self) -> None:
        machine = self.started("web.tmpl")
        self.printed(machine, "nginx -g daemon off;")
        self.assertIn("10.1.0.10/24", self.inside(machine, "ip", "addr"))
        made = self.inspect(machine)
        self.assertEqual(["CMD", "curl", "-f", "http://localhost/"], made["Config"]["Healthcheck"]["Test"])
        self.assertEqual((100_000, 256 << 20), (made["HostConfig"]["CpuQuota"], made["HostConfig"]["Memory"]))

    def test_a_cuda_job(self) -> None:
        machine = self.started("cuda.tmpl")
        self.printed(machine, "python3 train.py --data /media/1 --results /media/2")
        self.assertEqual("/dev/nvidia0\n", self.shell(machine, "ls /dev/nvidia[0-9]"))
        self.assertEqual("/workspace\n", self.shell(machine, "pwd"))
        for place in ("1", "2"):
            self.assertEqual("kept\n", self.shell(machine, f"echo kept > /media/{place}/file; cat /media/{place}/file"))

    def test_a_pair_of_mpi_ranks_over_two_functions(self) -> None:
        ranks = [self.started("mpi.tmpl", number, free=number - 1) for number in (1, 2)]
        for number, rank in enumerate(ranks, start=1):
            self.printed(rank, "sshd -D")
            self.assertEqual("eth0\nibp0\nlo\n", self.inside(rank, "ls", "/sys/class/net"))
            self.assertIn("max locked memory", self.shell(rank, "grep -i 'max locked memory' /proc/1/limits").lower())
            self.assertEqual(1, len(self.shell(rank, "ls /dev/infiniband | grep uverbs").split()))
            self.node.command(f"nsenter --target {self.pid(rank)} --net sh -c "
                              f"'ip address add 10.9.0.{number}/24 dev ibp0; ip link set ibp0 up'")
        self.node.command(f"ip link set {BRIDGE} up")
        for address in ("10.9.0.2", "10.1.0.20"):
            self.assertIn("1 packets received", self.inside(ranks[0], "ping", "-c", "1", "-W", str(TIMEOUT), address))

    def printed(self, machine: Machine, words: str) -> None:
        await_that(lambda: words in self.engine.console_log(machine.name).decode(), f"{machine.name} tells {words!r}")


def applications() -> bytes:
    raw = io.BytesIO(root_file_system())
    with tarfile.open(fileobj=raw, mode="a") as archive:
        directory = tarfile.TarInfo("workspace")
        directory.type, directory.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(directory)
        for path in PROGRAMS:
            program = tarfile.TarInfo(path)
            program.size, program.mode = len(PROGRAM), 0o755
            archive.addfile(program, io.BytesIO(PROGRAM))
    return raw.getvalue()
