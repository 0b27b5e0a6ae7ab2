# SPDX-License-Identifier: Apache-2.0
"""Where images come from."""

from collections.abc import Iterator
from contextlib import contextmanager

from tools.oned.front_end import listens
from tools.oned.machine import Machine, await_that
from tools.oned.scenarios import for_each_driver, scenario
from tools.oned.scenarios.disks import await_image, image_id
from tools.oned.setup import IMAGES_FROM
from tools.oned.stage import LXDONE, ONEDOCK, Driver, Stage, begun

REGISTRY = """
version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {directory}/data}}}}
http: {{addr: "0.0.0.0:5000"}}
"""
APP = 'NAME="{name}"\nORIGIN_ID={image}\nTYPE="IMAGE"\n'
FORMATS = {"tar.gz": "tarball of a root", "squashfs": "squashfs"}
WEB_HOST = 'ONEDOCK_PLAIN_HOSTS="127.0.0.1:8000"\n'  # what is on the front-end itself must be listed


@scenario
def image_of_a_registry(stage: Stage) -> str:
    """``oneimage create --path docker://…`` as the samples write it."""
    node = stage.cloud.nodes[0]
    host = f"{node.name}:5000"
    with registry(stage, node):
        stage.one.append("datastore", "containers", f'ONEDOCK_PLAIN_HOSTS="{host}"\n')
        stage.one("oneimage", "create", "--datastore", "containers", "--name", "pulled", "--type", "OS", "--path",
                  f"docker://{host}/team/polite:1", "--size", "256")
        image = image_id(stage, "pulled")
        await_image(stage, image, "READY")
    vm = stage.vm(ONEDOCK, "pulled", image="pulled")  # the registry is away
    path = stage.one.show("image", image)["PATH"]
    stage.end(vm)
    stage.one("oneimage", "delete", image)
    return f"PATH is {path} for oned"


@contextmanager
def registry(stage: Stage, node: Machine) -> Iterator[None]:
    """A registry on a node, with an image."""
    home = node.home / "registry"
    home.mkdir(exist_ok=True)
    (home / "config.yml").write_text(REGISTRY.format(directory=home))
    process = begun(*node.there("docker-registry", "serve", str(home / "config.yml")))
    try:
        stage.engine(node, ONEDOCK, "load", "--input", str(stage.cloud.front.home.parent / "polite.tar"))
        stage.engine(node, ONEDOCK, "tag", "polite", "127.0.0.1:5000/team/polite:1")
        await_that(lambda: listens(node, 5000), "the registry answers")
        stage.engine(node, ONEDOCK, "push", "127.0.0.1:5000/team/polite:1")
        stage.engine(node, ONEDOCK, "rmi", "polite", "127.0.0.1:5000/team/polite:1")
        yield
    finally:
        process.terminate()
        process.wait()


@for_each_driver
def image_of_a_web_server(stage: Stage, driver: Driver) -> str:
    datastore, file = ("containers", "polite.tar") if driver is ONEDOCK else ("default", "busybox.unified")
    name = f"web-{driver.name}"
    if driver is ONEDOCK:
        stage.one.append("datastore", datastore, WEB_HOST)
    with web(stage, IMAGES_FROM):
        stage.one("oneimage", "create", "--datastore", datastore, "--name", name, "--type", "OS", "--path",
                  f"http://127.0.0.1:8000/{file}", "--size", "256")
        await_image(stage, image_id(stage, name), "READY")
    stage.end(stage.vm(driver, "web", image=name))
    stage.one("oneimage", "delete", name)
    return f"http://…/{file}"


@for_each_driver
def image_of_a_marketplace(stage: Stage, driver: Driver) -> str:
    """An image becomes an appliance of a marketplace, and an image of another user's again."""
    directory = f"{IMAGES_FROM}/market-{driver.name}"
    stage.cloud.front.run("install", "-d", "-o", "oneadmin", directory)
    datastore = "containers" if driver is ONEDOCK else "default"
    name = f"market-{driver.name}"
    if driver is ONEDOCK:
        stage.one.append("datastore", datastore, WEB_HOST)
    with web(stage, directory):
        market = stage.one.create("market", f'NAME="{name}"\nMARKET_MAD="http"\nBASE_URL="http://127.0.0.1:8000/"\n'
                                            f'PUBLIC_DIR="{directory}"\n')
        stage.await_that(lambda: int(stage.one("onemarket", "show", "--json", market).split('"TOTAL_MB"')[1]
                                     .split('"')[1]) > 0, "the marketplace is monitored")
        image = image_id(stage, driver.image)
        app = stage.one.create("marketapp", APP.format(name=name, image=image), "--marketplace", market)
        stage.await_that(lambda: "rdy" in stage.one("onemarketapp", "show", app), "the appliance is there")
        stage.one("onemarketapp", "export", app, name, "--datastore", datastore)
        await_image(stage, image_id(stage, name), "READY")
        stage.end(stage.vm(driver, "market", image=name))
        stage.one("oneimage", "delete", name)
        stage.one("onemarketapp", "delete", app)
        stage.await_that(lambda: name not in stage.one("onemarketapp", "list", "--csv"), "the appliance is gone")
        stage.one("onemarket", "delete", market)
    return "exported and imported"


@scenario
def every_format_of_a_root(stage: Stage) -> str:
    """Test lxdone's images: archives and file systems, in a datastore with NO_DECOMPRESS as the manual has it."""
    seen = []
    for format_, words in FORMATS.items():
        name = f"format-{format_}"
        stage.one("oneimage", "create", "--datastore", "default", "--name", name, "--type", "OS", "--path",
                  f"{IMAGES_FROM}/busybox.{format_}")
        await_image(stage, image_id(stage, name), "READY")
        stage.end(stage.vm(LXDONE, "format", image=name))
        stage.one("oneimage", "delete", name)
        seen.append(words)
    return ", ".join(seen)


@contextmanager
def web(stage: Stage, directory: str) -> Iterator[None]:
    process = begun(*stage.cloud.front.there("python3", "-m", "http.server", "--bind", "127.0.0.1", "--directory",
                                             directory, "8000"))
    try:
        await_that(lambda: listens(stage.cloud.front, 8000), "the web server answers")
        yield
    finally:
        process.terminate()
        process.wait()
