# SPDX-License-Identifier: Apache-2.0
import testtools

from containerhost.engines.spec import Cpu, Memory, Program, Security
from onedock import attributes, lcm_states, translate
from onedock.conf import Options
from onedriver.errors import BadInput, NotSupported
from onedriver.node.limits import NodeCores
from tests.unit.onedock.machines import machine

MIB = 1 << 20
NODES = {0: frozenset({0, 1}), 1: frozenset({2, 3})}
DISK = "<DISK><DISK_ID>{}</DISK_ID><TYPE>{}</TYPE><SIZE>8</SIZE>{}</DISK>"


class SpecTest(testtools.TestCase):
    def spec(self, *validation: tuple[str, str], more: str = "", options: Options | None = None):
        vm = machine(*validation, more=more)
        return translate.spec(vm, attributes.read(vm.own, {}), options or Options(), NodeCores(NODES))

    def test_a_recorded_vm(self) -> None:
        spec = self.spec(more="<DOCKER_COMMAND>sleep 9</DOCKER_COMMAND><DOCKER_READ_ONLY>yes</DOCKER_READ_ONLY>")
        self.assertEqual(("one-1", Cpu(2, share=200), Memory(2048 * MIB), None, Security(read_only=True)),
                         (spec.name, spec.cpu, spec.memory, spec.root.size, spec.security))
        self.assertEqual(({"one.vm": "1", "one.stime": "1795247695"}, Program(command=("sleep", "9"))),
                         (dict(spec.labels), spec.program))

    def test_processes_up_to_what_the_node_allows(self) -> None:
        options = Options(process_limit=500)
        asked = "<DOCKER_PROCESS_LIMIT>{}</DOCKER_PROCESS_LIMIT>"
        self.assertEqual((500, 7), (self.spec(options=options).processes,
                                    self.spec(more=asked.format(7), options=options).processes))
        self.assertRaises(BadInput, self.spec, more=asked.format(501), options=options)

    def test_the_size_of_the_root_where_it_can_be_held(self) -> None:
        self.assertEqual(16 * MIB, self.spec(options=Options(root_quota=True)).root.size)

    def test_disks_beside_the_root(self) -> None:
        vm = machine(more=DISK.format(5, "fs", "") + DISK.format(6, "FILE", ""))
        self.assertEqual([1, 5, 6], [disk.id for disk in translate.volumes(vm)])
        self.assertEqual(0, vm.root.id)

    def test_disks_that_cannot_be_are_refused(self) -> None:
        for kind in ("swap", "CDROM", "RBD"):
            self.assertRaises(NotSupported, self.spec, more=DISK.format(5, kind, ""))
        self.assertRaises(NotSupported, self.spec, more="<TOPOLOGY><HUGEPAGE_SIZE>2</HUGEPAGE_SIZE></TOPOLOGY>")

    def test_a_disk_that_grows(self) -> None:
        vm = machine(more=DISK.format(5, "fs", ""))
        disk, size = translate.require_resizable(vm, "5", "16")
        self.assertEqual((5, 16 * MIB), (disk.id, size))
        self.assertRaises(NotSupported, translate.require_resizable, vm, "0", "512")
        for wrong in (("9", "16"), ("5", "0"), ("5", "1G"), ("../5", "16")):
            self.assertRaises(BadInput, translate.require_resizable, vm, *wrong)


class RefusalsTest(testtools.TestCase):
    def in_state(self, number: int):
        return machine(("<LCM_STATE>2<", f"<LCM_STATE>{number}<"))

    def test_memory_does_not_go_along_but_what_was_written_does(self) -> None:
        for number in (5, 7):
            self.assertRaises(NotSupported, lcm_states.of_taking_memory_along, self.in_state(number))
        lcm_states.of_taking_memory_along(self.in_state(6))
        kept = {number: (lcm_states.keeps(self.in_state(number), False), lcm_states.keeps(self.in_state(number), True))
                for number in (6, 7, 12, 18, 23, 29)}
        self.assertEqual({6: (False, False), 7: (True, True), 12: (False, True), 18: (False, False),
                          23: (False, False), 29: (True, True)}, kept)
