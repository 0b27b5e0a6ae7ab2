# SPDX-License-Identifier: Apache-2.0
"""QEMU with the hardware of the tests.

Two NUMA nodes. On the first a GPU; on the second, behind a host bridge of its own, an SR-IOV card, another GPU, and a
card with two ports, each a function of its own, which a cable connects.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

TIMEOUT = 3600  # s; without KVM everything takes ten times as long
MEMORY = 3072  # MiB
PROBE_TIMEOUT = 30  # s

NODES = tuple(word for node in (0, 1) for word in (
    "-object", f"memory-backend-ram,id=memory{node},size={MEMORY // 2}M",
    "-numa", f"node,nodeid={node},cpus={node},memdev=memory{node}"))
DEVICES = (
    "virtio-gpu-pci,id=gpu0,bus=pcie.0,addr=4",
    "pxb-pcie,id=far,bus=pcie.0,bus_nr=64,numa_node=1,addr=5",
    "pcie-root-port,id=port0,bus=far,chassis=1,slot=0,addr=0",
    "pcie-root-port,id=port1,bus=far,chassis=2,slot=1,addr=1",
    "pcie-root-port,id=port2,bus=far,chassis=3,slot=2,addr=2",
    "igb,id=card,bus=port0,netdev=wire",
    "e1000e,bus=port2,addr=0.0,multifunction=on,netdev=end0,romfile=",
    "e1000e,bus=port2,addr=0.1,netdev=end1,romfile=",
    "virtio-gpu-pci,id=gpu1,bus=port1",
    "virtio-serial-pci,id=ports,bus=pcie.0",
    "virtserialport,chardev=results,name=results",
    "virtio-blk-pci,bus=pcie.0,drive=source,serial=source",
    "virtio-blk-pci,bus=pcie.0,drive=root,serial=root",
)


class Machine:
    """:param tree: of Debian, with QEMU; what the machine reads and writes is in its directory ``/vm``
    """

    def __init__(self, tree: Path) -> None:
        self._qemu = ["chroot", str(tree), "qemu-system-x86_64"]
        self.results = tree / "vm" / "results"
        self.source = tree / "vm" / "source.tar"
        self.log = tree / "vm" / "console"

    def accelerator(self) -> str:
        """Return KVM where a machine can be made with it, else QEMU's own translation.

        The root to which QEMU is confined gets the node by which it asks."""
        node = Path(self._qemu[1]) / "dev" / "kvm"
        if Path("/dev/kvm").exists() and not node.exists():
            subprocess.run(["cp", "-a", "/dev/kvm", str(node)], check=True)
        return "kvm" if node.exists() and self._boots("kvm") else "tcg"

    def _boots(self, accelerator: str) -> bool:
        """Return whether a kernel gets to its first words: a node that opens says little where machines are nested."""
        command = [*self._qemu, "-M", f"q35,accel={accelerator}", "-cpu", "host", "-m", "512", "-kernel", "/vm/vmlinuz",
                   "-append", "console=ttyS0 panic=-1", "-nographic", "-no-reboot"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT) as process:
            try:
                told = process.communicate(timeout=PROBE_TIMEOUT)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                told = process.communicate()[0]
        return b"Kernel panic" in told  # it has no root disk

    def run(self, accelerator: str) -> int:
        """Until it turns itself off.

        :raises subprocess.TimeoutExpired: it does not
        """
        self.results.unlink(missing_ok=True)
        return subprocess.run([*self._qemu, *arguments(accelerator)], stdin=subprocess.DEVNULL, timeout=TIMEOUT,
                              check=False).returncode


def arguments(accelerator: str) -> Sequence[str]:
    # Without KVM the clock counts instructions (4 ns each): no time limit in the guest ends because the host is busy.
    processor = ("-cpu", "host") if accelerator == "kvm" else ("-cpu", "max", "-icount", "shift=2")
    return (
        "-M", f"q35,accel={accelerator}", *processor, "-smp", "2", "-m", f"{MEMORY}M", *NODES,
        "-kernel", "/vm/vmlinuz", "-initrd", "/vm/initrd.img",
        "-append", "root=/dev/disk/by-id/virtio-root rootfstype=ext4 rw init=/vm-init console=ttyS0 quiet panic=1",
        "-drive", "file=/vm/disk,format=raw,if=none,id=root,snapshot=on",
        "-drive", "file=/vm/source.tar,format=raw,if=none,id=source,read-only=on",
        "-chardev", "file,path=/vm/results,id=results",
        "-netdev", "user,restrict=on,id=wire",
        "-netdev", "hubport,hubid=1,id=end0", "-netdev", "hubport,hubid=1,id=end1",
        "-display", "none", "-vga", "none", "-monitor", "none", "-serial", "file:/vm/console", "-no-reboot",
        *(word for device in DEVICES for word in ("-device", device)))
