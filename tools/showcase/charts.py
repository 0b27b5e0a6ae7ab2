# SPDX-License-Identifier: Apache-2.0
"""Draw the Grafana dashboard's panels for the manual, without Grafana: ``python -m tools.showcase.charts FILE.png``.

Run it where a kept cloud with emulated hardware is: ``sudo tools/demo --keep`` (with or without ``--horizon``), then
``sudo tools/demo exec python …``. It starts a Prometheus (Debian's package) and the exporter where the cloud has none,
lets servers come and go and a GPU break for three minutes, and draws what Prometheus answers to the dashboard's own
queries. The exporter's last page is written beside the picture (``.txt``). Needs matplotlib: ``sudo tools/install
simulator``.
"""

import contextlib
import datetime
import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter
from openstack.connection import Connection

from tests.fakehost.control import FakeHostControl
from tools.cloud import dashboard
from tools.cloud.cloud import Cloud
from tools.cloud.configs import HOST
from tools.cloud.identity import TENANT
from tools.cloud.layout import CHECKOUT
from tools.showcase import stage
from tools.showcase.__main__ import in_use
from tools.showcase.story import FLAVOR, IMAGE, NAMES

DASHBOARD = CHECKOUT / "etc/grafana/containerhost.json"
EXPORTER, PROMETHEUS = "127.0.0.1:9869", "127.0.0.1:9090"
SCRAPE, WINDOW = 2, 30  # seconds: between two scrapes; what the dashboard calls $__rate_interval
ROUNDS, HELD, FREE = 4, 15, 10  # how often servers come, and the seconds that they stay and are gone
COLUMNS, ROW_HEIGHT, WIDTH = 24, 0.28, 13.0  # of the dashboard's grid; inches
LOADS = (35, 80, 95, 90, 95, 60)  # per cent of a GPU, one second each: made up
LEGEND = 6  # lines that are named
TEXT_LIMIT = 30  # characters of a label in a table
HIDDEN = ("__name__", "job", "uuid", "engine")
UNITS = {"percentunit": "share", "bytes": "bytes", "watt": "W", "Bps": "bytes/s", "s": "s"}
Answer = list[dict[str, Any]]


@contextlib.contextmanager
def running(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def prometheus(cloud: Cloud, directory: Path) -> Iterator[None]:
    """Scrape the cloud's host with a Prometheus of its own."""
    configuration = directory / "prometheus.yml"
    configuration.write_text(yaml.safe_dump({
        "global": {"scrape_interval": f"{SCRAPE}s"},
        "scrape_configs": [{"job_name": "containerhost",
                            "static_configs": [{"targets": [EXPORTER], "labels": {"instance": HOST}}]}]}))
    exporter = (contextlib.nullcontext() if cloud.shape.dashboard
                else running(*dashboard.exporter(cloud.ports, cloud.owners).argv))
    with exporter, running("prometheus", f"--config.file={configuration}", f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address={PROMETHEUS}", "--log.level=error"):
        yield


def ask(path: str, **arguments: Any) -> Answer:
    url = f"http://{PROMETHEUS}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return list(json.load(answer)["data"]["result"])


def expression(target: dict[str, Any]) -> str:
    return str(target["expr"]).replace("$instance", ".*").replace("$__rate_interval", f"{WINDOW}s")


def boot(tenant: Connection) -> list[Any]:
    """Make the story's servers, one after another. They are ACTIVE then."""
    compute = tenant.compute
    image = tenant.image.find_image(IMAGE, ignore_missing=False)
    flavor = compute.find_flavor(FLAVOR, ignore_missing=False)
    return [compute.wait_for_server(
        compute.create_server(name=name, image_id=image.id, flavor_id=flavor.id, networks="none"), wait=120)
        for name in NAMES]


def compute(control: FakeHostControl, gpus: Sequence[str], seconds: int) -> None:
    """Let the GPUs compute in steps, one a little later than the other."""
    for second in range(seconds):
        for number, gpu in enumerate(gpus):
            control.set_load(gpu, LOADS[(second + number) % len(LOADS)])
        time.sleep(1)
    for gpu in gpus:
        control.set_load(gpu, 0)


def delete(tenant: Connection, servers: Sequence[Any]) -> None:
    for server in servers:
        tenant.compute.delete_server(server)
    for server in servers:
        tenant.compute.wait_for_delete(server, wait=120)


def draw(panels: Sequence[dict[str, Any]], start: float, end: float) -> pyplot.Figure:
    """Draw each panel where the dashboard has it."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = pyplot.figure(figsize=(WIDTH, rows * ROW_HEIGHT))
    for panel in panels:
        place = panel["gridPos"]
        axes = figure.add_axes((
            (place["x"] + 1.4) / COLUMNS, 1 - (place["y"] + place["h"] - 1.3) / rows, (place["w"] - 2) / COLUMNS,
            (place["h"] - 2.6) / rows))
        axes.set_title(panel["title"], fontsize=9, loc="left", fontweight="bold")
        DRAW[panel["type"]](axes, panel, start, end)
    return figure


def empty(axes: Axes) -> None:
    axes.text(0.5, 0.5, "no data", ha="center", va="center", color="grey", transform=axes.transAxes)


def numbers(axes: Axes, panel: dict[str, Any], _start: float, end: float) -> None:
    axes.axis("off")
    for place, target in enumerate(panel["targets"]):
        (answer,) = ask("query", query=expression(target), time=end)
        x = (place + 0.5) / len(panel["targets"])
        axes.text(x, 0.55, answer["value"][1], ha="center", va="center", fontsize=26)
        axes.text(x, 0.2, target["legendFormat"], ha="center", va="center", fontsize=9, color="grey")


def table(axes: Axes, panel: dict[str, Any], _start: float, end: float) -> None:
    axes.axis("off")
    found = [sample["metric"] for target in panel["targets"]
             for sample in ask("query", query=expression(target), time=end)]
    labels = sorted({label for metric in found for label in metric if metric[label] and label not in HIDDEN})
    if not found:
        empty(axes)
        return
    drawn = axes.table([[metric.get(label, "")[:TEXT_LIMIT] for label in labels] for metric in found], colLabels=labels,
                       loc="upper left", cellLoc="left")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(7)
    drawn.auto_set_column_width(list(range(len(labels))))


def series(axes: Axes, panel: dict[str, Any], start: float, end: float) -> None:
    axes.tick_params(labelsize=7)
    axes.set_ylabel(UNITS.get(panel["fieldConfig"]["defaults"]["unit"], ""), fontsize=7)
    for target in panel["targets"]:
        for found in ask("query_range", query=expression(target), start=start, end=end, step=SCRAPE):
            label = re.sub(r"{{(\w+)}} ?", lambda name, has=found["metric"]: f"{has.get(name[1], '')} ".lstrip(),
                           target["legendFormat"])
            times = [datetime.datetime.fromtimestamp(at, datetime.UTC) for at, _ in found["values"]]
            axes.plot(times, [float(value) for _, value in found["values"]], label=label, linewidth=1)
    if not axes.lines:
        axes.set_xticks([])
        axes.set_yticks([])
        empty(axes)
        return
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M:%S"))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(handles=axes.lines[:LEGEND], fontsize=6, loc="upper left")


DRAW = {"stat": numbers, "table": table, "timeseries": series}


def main() -> None:
    file = Path(sys.argv[1]).absolute()
    layout, shape = in_use()[0]
    cloud = Cloud(layout, shape=shape)
    tenant, control = cloud.connect(TENANT), FakeHostControl.from_environment()
    directory = layout.run / "charts"
    directory.mkdir(exist_ok=True)
    gpus = [pair.gpu.address for pair in stage.pairs()]
    with prometheus(cloud, directory):
        start = time.time()
        for _ in range(ROUNDS):
            time.sleep(FREE)  # nova counts what a deleted server had a moment after it is gone
            servers = boot(tenant)
            compute(control, gpus, HELD)
            delete(tenant, servers)
        time.sleep(FREE)
        servers = boot(tenant)
        compute(control, gpus, HELD)
        control.set_fallen(gpus[0])
        try:
            compute(control, gpus[1:], HELD)
            end = time.time()
            draw(json.loads(DASHBOARD.read_text())["panels"], start, end).savefig(file, dpi=90)
            with urllib.request.urlopen(f"http://{EXPORTER}/metrics", timeout=30) as page:
                file.with_suffix(".txt").write_bytes(page.read())
        finally:
            control.set_fallen(gpus[0], False)
            delete(tenant, servers)


if __name__ == "__main__":
    main()
