"""The OCI runtime that Docker runs for this project's containers: runc, and with it what a container's record says.

Docker fixes a container's devices when it makes it. Here they are added each time it starts, before its first program
runs, so that it has exactly what it was last given, whoever starts it; and its interfaces are back on the host by the
time Docker says that it has stopped. Only ``create`` and ``delete`` are more than runc's own.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from containerhost import addresses, links
from containerhost.engines.docker.privileged import NODE_MODE
from containerhost.engines.docker.record import FOLDER, Record, Records
from containerhost.errors import ContainerHostError
from containerhost.privileged import run
from containerhost.rollback import Rollback

RUNC = "runc"

# Options of runc, before its command, that are followed by a value.
VALUED = ("--root", "--log", "--log-format", "--criu", "--rootless")


def main(arguments: Sequence[str] | None = None) -> int:
    """``containerhost-docker-runtime [--records FOLDER] RUNC-ARGUMENTS``"""
    words = list(sys.argv[1:] if arguments is None else arguments)
    records = Records(Path(words[1]) if words[:1] == ["--records"] else FOLDER)
    if words[:1] == ["--records"]:
        words = words[2:]
    command = command_of(words)
    if command not in ("create", "delete"):
        os.execvp(RUNC, [RUNC, *words])  # noqa: S606
    try:
        return (create if command == "create" else delete)(records, words)
    except (ContainerHostError, OSError, ValueError, KeyError) as error:
        return failed(words, str(error))


def create(records: Records, words: Sequence[str]) -> int:
    container = words[-1]
    record = records.read(container)
    bring_back(records, container)  # what a killed runtime left
    rewrite(Path(value_of(words, "--bundle") or ".", "config.json"), record)
    status = runc(words)
    if status:
        return status
    with Rollback(f"creation of container {container}") as undo:
        undo.on_error("its creation", runc, [*common(words), "delete", "--force", container])
        undo.on_error("its interfaces", bring_back, records, container)
        lend(records, container, record, Path(value_of(words, "--pid-file") or "").read_text(encoding="ascii"))
    return 0


def delete(records: Records, words: Sequence[str]) -> int:
    status = runc(words)
    if status == 0 or "--force" in words:
        bring_back(records, words[-1])
    return status


def lend(records: Records, container: str, record: Record, pid: str) -> None:
    """Move the interfaces in, and keep the network namespace: the kernel would keep it only as long as its processes,
    and with it every interface that comes later."""
    place = records.namespace(container)
    place.touch()
    run(["mount", "--bind", f"/proc/{int(pid)}/ns/net", str(place)])
    for netdev in sorted(record.netdevs):
        links.lend(netdev.host_name, str(place), netdev.name)
        if netdev.setup:
            addresses.apply(str(place), netdev.name, netdev.setup)


def bring_back(records: Records, container: str) -> None:
    place = records.namespace(container)
    if not place.exists():
        return
    if os.path.ismount(place):
        for netdev in sorted(records.read(container).netdevs):
            if netdev.name in links.names_in(str(place)):
                links.fetch(netdev.name, str(place), netdev.host_name)
        run(["umount", str(place)])
    place.unlink()


def rewrite(path: Path, record: Record) -> None:
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(with_nodes(config, record)), encoding="utf-8")


def with_nodes(config: dict[str, Any], record: Record) -> dict[str, Any]:
    """An OCI runtime configuration (config-linux.md, "Devices") with the nodes of a record. Pure."""
    linux = config["linux"]
    resources = linux.get("resources") or {}
    nodes = sorted(record.nodes)
    return config | {"linux": linux | {
        "devices": [*(linux.get("devices") or ()), *(
            {"path": node.path, "type": "c", "major": node.major, "minor": node.minor, "fileMode": NODE_MODE,
             "uid": 0, "gid": 0} for node in nodes)],
        "resources": resources | {"devices": [*(resources.get("devices") or ()), *(
            {"allow": True, "type": "c", "major": node.major, "minor": node.minor, "access": "rwm"}
            for node in nodes)]}}}


# runc's command line.


def runc(words: Sequence[str]) -> int:
    return subprocess.run([RUNC, *words], check=False).returncode


def command_of(words: Sequence[str]) -> str | None:
    rest = list(words)
    while rest and rest[0].startswith("-"):
        del rest[:2 if rest[0] in VALUED else 1]
    return rest[0] if rest else None


def common(words: Sequence[str]) -> list[str]:
    """The options before the command."""
    return list(words[:list(words).index(command_of(words) or "")])


def value_of(words: Sequence[str], option: str) -> str | None:
    return words[list(words).index(option) + 1] if option in words else None


def failed(words: Sequence[str], why: str) -> int:
    """Docker shows the last error of runc's log."""
    log = value_of(words, "--log")
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps({"level": "error", "msg": why}) + "\n")
    print(why, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
