# SPDX-License-Identifier: Apache-2.0
"""Show what a tenant and an administrator do and see in Horizon."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml

from nova_lxd_dashboard import pciids
from tools.cloud import dashboard, identity
from tools.cloud.cloud import Cloud
from tools.cloud.layout import CHECKOUT, program
from tools.showcase.browser import Browser, browser
from tools.showcase.report import Report

METADATA = CHECKOUT / "etc" / "metadefs" / "compute-lxd.json"
KEY, VALUE = "lxd:process_limit", "4096"
SERVER = "train-horizon"
STEP = "//div[contains(concat(' ', @class, ' '), ' step ') and not(contains(@class, 'ng-hide'))]"


class Dashboard:
    """Show the flavor's way through Horizon: its metadata, a server of it, the panels "Accelerators", and its host.

    :param pictures: directory of the screenshots
    :param devices: how many devices the flavor gives
    """

    def __init__(self, cloud: Cloud, report: Report, pictures: Path, devices: int) -> None:
        self._cloud, self._report, self._pictures, self._devices = cloud, report, pictures, devices
        self._admin = cloud.connect("admin")
        self._tenant = cloud.connect(identity.TENANT)
        self._accounts = {name: entry["auth"] for name, entry in
                          yaml.safe_load(cloud.layout.clouds_yaml.read_text())["clouds"].items()}

    def tell(self, flavor: str, image: str) -> None:
        self._report.chapter("Horizon")
        self._import_metadata()
        with browser(dashboard.url(self._cloud.ports), self._pictures) as window:
            self._log_in(window, "admin")
            self._edit_metadata(window, flavor)
        with browser(dashboard.url(self._cloud.ports), self._pictures) as window:
            self._log_in(window, identity.TENANT)
            self._launch(window, flavor, image)
            self._see_own(window, flavor)
        with browser(dashboard.url(self._cloud.ports), self._pictures) as window:
            self._log_in(window, "admin")
            self._see_all(window)
        server = self._tenant.compute.find_server(SERVER, ignore_missing=False)
        self._tenant.compute.delete_server(server)
        self._tenant.compute.wait_for_delete(server, wait=60)

    def _import_metadata(self) -> None:
        self._report.command(f"glance md-namespace-import --file {METADATA.relative_to(CHECKOUT)}")
        subprocess.run((program("glance"), "md-namespace-import", "--file", str(METADATA)), check=True,
                       env={**os.environ, **self._environment("admin")}, stdin=subprocess.DEVNULL, capture_output=True)

    def _environment(self, user: str) -> Mapping[str, str]:
        """Return what the ``glance`` command reads, which knows no clouds.yaml."""
        return {f"OS_{key.upper()}": value for key, value in self._accounts[user].items()} | {
            "OS_IDENTITY_API_VERSION": "3"}

    def _log_in(self, window: Browser, user: str) -> None:
        with self._report.timed(f"Horizon: log in as {user}"):
            window.log_in(self._accounts[user]["username"], self._accounts[user]["password"])

    def _edit_metadata(self, window: Browser, flavor: str) -> None:
        """Set a key of the flavor that its description in Glance explains."""
        described = json.loads(METADATA.read_text())
        tree = "//div[contains(@class, 'metadata-tree')]//div[@class='col-md-6'][1]"
        found = self._admin.compute.find_flavor(flavor, ignore_missing=False)
        window.open("/admin/flavors/")
        window.await_that(lambda: flavor in window.driver.page_source, flavor)
        window.driver.execute_script(
            "document.getElementById(arguments[0]).click()", f"flavors__row_{found.id}__action_update_metadata")
        window.click(f"{tree}//li[contains(., '{described['display_name']}')]")  # it opens
        window.click(f"{tree}//li[contains(., '{described['properties'][KEY]['title']}')]//a")
        window.type(f"//metadata-tree-item[contains(., '{KEY}')]//input", VALUE)
        self._picture(window, "horizon-flavor-metadata")
        window.click("//div[contains(@class, 'modal-footer')]//button[contains(@class, 'btn-primary')]")
        specs = window.await_that(lambda: self._specs(found.id).get(KEY), KEY)
        self._report.check("Horizon", f"an administrator sets {KEY} of the flavor by its description", str(specs),
                           specs == VALUE)

    def _specs(self, flavor: str) -> Mapping[str, str]:
        specs: Mapping[str, str] = self._admin.compute.fetch_flavor_extra_specs(
            self._admin.compute.get_flavor(flavor)).extra_specs
        return specs

    def _launch(self, window: Browser, flavor: str, image: str) -> None:
        window.open("/project/instances/")
        window.click("#instances__action_launch-ng")
        window.type("#name", SERVER)
        for choice in (image, flavor, "private"):
            window.click("button.next")
            offered = f"{STEP}//div[contains(@class, 'transfer-available')]//tr[contains(., '{choice}')]//button"
            chosen = f"{STEP}//div[contains(@class, 'transfer-allocated')]//tr[contains(., '{choice}')]"
            if window.find(f"{offered} | {chosen}").tag_name == "button":  # a project's only network is chosen already
                window.click(offered)
            window.find(chosen)
            if choice == flavor:
                window.click(f"{STEP}//div[contains(@class, 'transfer-allocated')]"
                             "//span[contains(@class, 'fa-chevron-right')]")
                self._picture(window, "horizon-launch")
        with self._report.timed(f"Horizon: {SERVER}, from request to Active"):
            window.click("button.finish")
            row = f"//tr[contains(., '{SERVER}')]"
            window.find(f"{row}[contains(., 'Active') or contains(., 'Error')]")
        status = self._tenant.compute.find_server(SERVER, ignore_missing=False).status
        self._picture(window, "horizon-instances")
        self._report.check("Horizon", "a tenant launches a server of the flavor", status, status == "ACTIVE")

    def _see_own(self, window: Browser, flavor: str) -> None:
        window.open("/project/accelerators/")
        row = window.find(f"//table//tr[contains(., '{SERVER}')]").text
        self._picture(window, "horizon-project-accelerators")
        self._report.check("Horizon", "the tenant's panel lists the server's accelerators", row.replace("\n", " "),
                           flavor in row and all(offer.alias in row for offer in self._cloud.offers))

    def _see_all(self, window: Browser) -> None:
        window.open("/admin/accelerators/")
        window.find(f"//table//tr[contains(., '{SERVER}')]")
        rows = window.driver.find_elements("xpath", f"//table//tbody//tr[contains(., '{SERVER}')]")
        self._picture(window, "horizon-admin-accelerators")
        self._report.check("Horizon", "the administrator's panel lists the devices it holds",
                           "; ".join(row.text.replace("\n", " ") for row in rows), len(rows) == self._devices)
        models = [pciids.model(offer.resource_class) for offer in self._cloud.offers]
        self._report.check("Horizon", "it names their models", ", ".join(model or "no name" for model in models),
                           all(any(model and model in row.text for row in rows) for model in models))
        self._see_host(window, rows[0].find_element("xpath", ".//a[contains(@href, '/hosts/')]").get_attribute("href"))

    def _see_host(self, window: Browser, page: str) -> None:
        """Open the picture of the server's host."""
        server = self._admin.compute.find_server(SERVER, all_projects=True, ignore_missing=False)
        container = self._admin.compute.get_server(server).instance_name
        window.driver.get(page)
        window.find("svg.img-responsive")
        held = [line.strip("│├└─ ") for line in window.find("pre").text.splitlines() if line.endswith(f": {container}")]
        self._picture(window, "horizon-admin-host")
        self._report.check("Horizon", "the picture of its host, by the exporter there, has them too", "; ".join(held),
                           len(held) == self._devices)

    def _picture(self, window: Browser, name: str) -> None:
        self._report.say(f"screenshot: {window.take_picture(name)}")
