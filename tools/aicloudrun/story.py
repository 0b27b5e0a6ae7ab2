# SPDX-License-Identifier: Apache-2.0
"""Run the suites in the demo's cloud, with the provider of examples/aicloud/openstack."""

import dataclasses
import http.server
import json
import os
import runpy
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Sequence
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from tools.aicloudrun import results
from tools.cloud import identity
from tools.cloud.cloud import Cloud
from tools.cloud.configs import HOST
from tools.cloud.hardware import Offer
from tools.cloud.identity import TENANT
from tools.cloud.layout import CHECKOUT
from tools.cloud.networking import EXTERNAL, EXTERNAL_ADDRESS, FIXED
from tools.debianimage import DebianImage, File
from tools.mpi import image
from tools.showcase import breakfix
from tools.showcase.report import Report
from tools.showcase.story import flavor_keys

CACHE = CHECKOUT / ".cache" / "aicloud"
PROVIDER = CHECKOUT / "examples" / "aicloud" / "openstack"
# Suite -> the capability that it is run under; the two first ones are one themselves. The longest ones begin.
SUITES = {"bare_metal": None, "vm": None, "network": "vm", "security": "vm", "image-registry": "vm",
          "control-plane": None, "iam": None}
PACKAGES = ("isvreporter", "isvtest", "isvctl")
IMAGE, FLAVOR, NODE_FLAVOR, PLAIN_FLAVOR = "aicloud", "aicloud.gpu", "aicloud.node", "aicloud.plain"
SYSTEM, USER = "debian", "debian"
NODES = "dri/,infiniband/,nvidia"  # below /dev, what the devices of the flavors have
MOST = 10  # of each device, for a project: more than there are
RACK = {"rack": "r1", "switch": "r1s1"}  # where the host is
FAULT = "tools.aicloudrun.fault"
TIMEOUT = 3600  # s, for one suite


class SuiteFailed(Exception):
    """The suite could not be installed, or ended without a report."""


def recipe() -> DebianImage:
    """Return an image of Debian, which shows its boot on the console as a machine does."""
    return image.member(CACHE, ("curl", "iputils-ping", "sudo"), {
        "etc/rc.local": File(b"#!/bin/sh\ncat /var/log/boot.log > /dev/console\n", 0o755)})


def install(suite: Path) -> None:
    """Make an environment of its own for the suite, which runs from its checkout, unless there is one.

    :raises SuiteFailed: pip fails; with the end of what it said
    """
    projects = [(suite / package / "pyproject.toml").read_text() for package in PACKAGES]
    wanted, note = "\n".join([str(suite.resolve()), *projects]), CACHE / "venv" / "suite"
    if note.exists() and note.read_text() == wanted:
        return
    subprocess.run((sys.executable, "-m", "venv", "--clear", str(CACHE / "venv")), check=True)
    needed = [requirement for project in projects for requirement in tomllib.loads(project)["project"]["dependencies"]
              if not requirement.startswith((*PACKAGES, "cupy"))]  # CuPy is for GPUs of this very machine
    own = [word for package in PACKAGES for word in ("--editable", str(suite / package))]
    # The suite asks for Python 3.12, and works with Debian 12's 3.11.
    for words in (["openstacksdk>=4.4", *needed], ["--no-deps", "--ignore-requires-python", *own]):
        done = subprocess.run((str(CACHE / "venv/bin/pip"), "install", "-q", *words), capture_output=True, text=True,
                              check=False)
        if done.returncode:
            raise SuiteFailed(f"The suite cannot be installed: {done.stderr[-2000:]}")
    note.write_text(wanted)


class Egress(http.server.BaseHTTPRequestHandler):
    """Tell a client the address that it comes from."""

    def do_GET(self) -> None:
        body = f"{self.client_address[0]}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""


class AicloudStory:
    """:param offers: the GPU and the function that flavors give
    :param suite: the checkout of the suite
    :param suites: names of those to run
    """

    def __init__(self, cloud: Cloud, offers: Sequence[Offer], report: Report, suite: Path,
                 suites: Sequence[str]) -> None:
        self._cloud, self._offers, self._report = cloud, offers, report
        self._suite, self._suites = suite, suites or tuple(SUITES)
        self._admin = cloud.connect("admin")
        self._directory, self._repairs = cloud.layout.directory / "results", cloud.layout.logs / "repair.log"
        self._manifest = cloud.layout.run / "manifest.json"
        self._results: list[results.Result] = []

    def tell(self) -> None:
        self.offer()
        self._directory.mkdir(exist_ok=True)
        server = http.server.ThreadingHTTPServer((EXTERNAL_ADDRESS, 0), Egress)
        with server, breakfix.repair(self._cloud, self._report, self._repairs):
            threading.Thread(target=server.serve_forever, daemon=True).start()
            for name in self._suites:
                try:
                    self.run(name, f"http://{EXTERNAL_ADDRESS}:{server.server_port}")
                except (SuiteFailed, subprocess.TimeoutExpired) as error:  # the other suites have results of their own
                    self._report.check(name, "ends with a report", str(error), False)
            server.shutdown()
        self._report.setting["checks"] = [dataclasses.asdict(result) for result in self._results]
        self.table()

    def offer(self) -> None:
        self._report.chapter("An image with sshd, and flavors: plain, with two devices, with all of the node")
        with self._report.timed("image"):
            self._admin.create_image(IMAGE, filename=str(recipe().unified(self._report.say)), disk_format="raw",
                                     container_format="bare", visibility="public", wait=True, timeout=300)
        keys = flavor_keys(self._offers)
        whole = {**keys, "pci_passthrough:alias": ",".join(
            f"{offer.alias}:{len(offer.addresses)}" for offer in self._offers), "hw:numa_nodes": "2"}
        for name, cpus, specs in ((PLAIN_FLAVOR, 1, {}), (FLAVOR, 1, keys), (NODE_FLAVOR, 2, whole)):
            flavor = self._admin.compute.create_flavor(name=name, vcpus=cpus, ram=512, disk=2)
            if specs:
                self._admin.compute.create_flavor_extra_specs(flavor, specs)
        for offer in self._offers:
            identity.register_limit(self._admin, f"class:{offer.resource_class}", MOST)
        rack = self._admin.compute.create_aggregate(name=RACK["rack"])
        self._admin.compute.set_aggregate_metadata(rack, RACK)
        self._admin.compute.add_host_to_aggregate(rack, HOST)
        addresses = [address for offer in self._offers for address in offer.addresses]
        self._manifest.write_text(json.dumps({HOST: addresses}))

    def run(self, name: str, egress: str) -> None:
        """Run one suite, and note the result of each check.

        :raises SuiteFailed: it ended without a report
        """
        self._report.chapter(f"The suite {name}")
        contract = self._suite / "isvctl" / "configs" / "suites" / f"{name}.yaml"
        suite = yaml.safe_load(contract.read_text())
        excluded = results.left_out(yaml.safe_load((PROVIDER / "reasons.yaml").read_text()))
        overlay, junit = self._directory / f"{name}.yaml", self._directory / f"{name}.xml"
        overlay.write_text(yaml.safe_dump(results.overlay(suite, excluded, SYSTEM)))
        config = self._directory / f"{name}.json"
        config.write_text(json.dumps(runpy.run_path(str(PROVIDER / "configure.py"))["configuration"](name)))
        junit.unlink(missing_ok=True)
        command = [str(CACHE / "venv/bin/isvctl"), "test", "run", "-f", str(contract), "-f", str(overlay), "-f",
                   str(config), "--no-upload", "--no-user-config", "--junitxml", str(junit),
                   *(["--capability", SUITES[name]] if SUITES[name] else []), "--verbose"]
        self._report.command(f"isvctl test run -f {contract.name} -f {overlay.name} -f {config.name}")
        with self._report.timed(name), (self._directory / f"{name}.log").open("w") as log:
            subprocess.run(command, cwd=self._directory, env=self._environment(name, egress), stdin=subprocess.DEVNULL,
                           stdout=log, stderr=log, timeout=TIMEOUT, check=False)
        if not junit.exists():
            raise SuiteFailed(f"The suite {name} ended without a report; see {self._directory / name}.log")
        found = results.judge(name, suite, junit.read_text(), excluded)
        self._results += found
        failed = [result for result in found if result.result == results.FAILED]
        for result in failed:
            self._report.say(f"failed: {result.check}: {result.reason}", "bold red")
        self._report.check(name, "no check fails", results.line(found), not failed)

    def table(self) -> None:
        table = Table(title="The checks; * is a minimum requirement", title_justify="left")
        for column in ("suite", "test", "check", "result"):
            table.add_column(column, no_wrap=True)
        table.add_column("reason", overflow="fold")
        for each in self._results:
            test = each.test_id + ("*" if each.required else "")
            table.add_row(each.suite, test, each.check, each.result, each.reason)
        console = Console(highlight=False)
        (console if console.is_terminal else Console(highlight=False, width=200)).print(table)
        self._report.say(results.line(self._results))

    def _environment(self, name: str, egress: str) -> dict[str, str]:
        programs = shlex.quote(f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        return {
            **os.environ, "ISVTEST_INCLUDE_UNRELEASED": "1", "PYTHONDONTWRITEBYTECODE": "1",
            "OS_CLOUD": TENANT, "AICLOUD_ADMIN": "admin", "OS_CLIENT_CONFIG_FILE": str(self._cloud.layout.clouds_yaml),
            "AICLOUD_USER": USER, "AICLOUD_IMAGE": IMAGE,
            "AICLOUD_IMAGE_FILE": str(recipe().unified(self._report.say)),
            "AICLOUD_FLAVOR": NODE_FLAVOR if name == "bare_metal" else FLAVOR, "AICLOUD_PLAIN_FLAVOR": PLAIN_FLAVOR,
            "AICLOUD_NETWORK": FIXED, "AICLOUD_EXTERNAL": EXTERNAL, "AICLOUD_DEVICE_NODES": NODES,
            "AICLOUD_EGRESS": egress, "AICLOUD_STATE": str(self._cloud.layout.run / "aicloud"),
            "AICLOUD_HOST": f"env PATH={programs} CONTAINERHOST_OWNERS={self._cloud.owners} sh -c",
            "AICLOUD_FAULT": f"env -C {CHECKOUT} {sys.executable} -m {FAULT} {{action}} {{kind}} {{device}}",
            "AICLOUD_NOTIFICATIONS": str(self._repairs), "AICLOUD_MANIFEST": str(self._manifest),
            "AICLOUD_NEUTRON_LOG": str(self._cloud.layout.logs / "neutron-api.log")}
