# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json

import testtools

from containerhost.devices.grants import Grant
from containerhost.devices.model import CharNode
from containerhost.engines.docker import config
from containerhost.engines.docker.record import Netdev, Node, Record
from containerhost.engines.spec import (
    BlockDevice,
    BridgedNic,
    CloudInit,
    Cpu,
    Health,
    IoLimit,
    Memory,
    Mount,
    Nic,
    PoolDisk,
    Program,
    RescueMount,
    RootDisk,
    Security,
)
from containerhost.errors import SpecError
from tests.unit.containerhost.engines.test_lxd_config import GPU, GiB, container, gpu_grant, vf_grant

DISK = "/dev/vda"
BOTH = config.record_of((vf_grant(0), vf_grant(1)))


def made(**more):
    return config.container(container(**{"root": RootDisk("any")} | more), DISK)


def host(**more):
    return made(**more)["HostConfig"]


class TestContainer(testtools.TestCase):
    def test_the_least(self):
        self.assertEqual({
            "Image": "busybox", "Hostname": "c1", "Env": [], "Labels": {"containerhost": "{}"},
            "HostConfig": {
                "Runtime": "containerhost", "NetworkMode": "none", "IpcMode": "private", "Privileged": False,
                "RestartPolicy": {"Name": "no"}, "LogConfig": config.LOG, "PidsLimit": 16384, "ReadonlyRootfs": False,
                "Memory": GiB, "MemorySwap": GiB, "Mounts": [], "CpuPeriod": 100_000, "CpuQuota": 200_000,
                "Tmpfs": {"/run/containerhost": "size=1m,mode=0755"}, "Ulimits": [], "CapAdd": []}}, made())

    def test_another_program(self):
        program = Program(("/init", "a b"), ("x",), "/srv", "1000:1000",
                          Health(("check",), interval=5, retries=2), "web")
        body = made(program=program)
        self.assertEqual((["/init", "a b"], ["x"], "/srv", "1000:1000", "web"),
                         tuple(body[key] for key in ("Entrypoint", "Cmd", "WorkingDir", "User", "Hostname")))
        self.assertEqual({"Test": ["CMD", "check"], "Interval": 5_000_000_000, "Timeout": 0, "StartPeriod": 0,
                          "Retries": 2}, body["Healthcheck"])
        self.assertEqual([], made(program=Program(entrypoint=("/x",)))["Cmd"])
        self.assertEqual({"Test": ["NONE"]}, made(program=Program(health=Health(())))["Healthcheck"])

    def test_health_checks_are_not_made_without_a_pause(self):
        second = config.SECOND
        for wanted, of_image, expected in (
                ({}, {}, {}),
                ({}, {"Test": ["CMD", "x"], "Interval": 1000000}, {"Interval": 5 * second}),
                ({}, {"Test": ["CMD", "x"]}, {}),
                ({"Test": ["NONE"]}, {"Test": ["CMD", "x"], "Interval": 1}, {"Test": ["NONE"]}),
                ({"Test": ["CMD", "y"], "Interval": 0}, {"Interval": 1, "StartInterval": 1},
                 {"Test": ["CMD", "y"], "Interval": 5 * second, "StartInterval": 5 * second}),
                ({"Test": ["CMD", "y"], "Interval": second}, {}, {"Test": ["CMD", "y"], "Interval": 5 * second}),
                ({"Test": ["CMD", "y"], "Interval": 9 * second}, {"Interval": 1},
                 {"Test": ["CMD", "y"], "Interval": 9 * second})):
            self.assertEqual(expected, config.limited_health(wanted, of_image))

    def test_what_an_administrator_allows_comes_beside(self):
        spec = container(root=RootDisk("any"), parts=(vf_grant(),))
        more = config.container(spec, DISK, {"CapAdd": ["NET_RAW"], "ShmSize": 7})["HostConfig"]
        self.assertEqual((["IPC_LOCK", "NET_RAW"], 7, "none"), (more["CapAdd"], more["ShmSize"], more["NetworkMode"]))

    def test_a_root_that_cannot_be_written(self):
        self.assertTrue(host(security=Security(read_only=True))["ReadonlyRootfs"])

    def test_an_update_leaves_no_limit_of_before(self):
        spec = container(root=RootDisk("any"), cpu=Cpu(2), memory=Memory(GiB))
        self.assertEqual({"CpuPeriod": 100_000, "CpuQuota": 200_000, "CpusetCpus": "0-3", "CpusetMems": "0",
                          "CpuShares": 1024, "Memory": GiB, "MemorySwap": GiB}, config.update(spec, "0-3", "0"))
        pinned = config.update(container(root=RootDisk("any"), cpu=Cpu(2, frozenset({1, 2}), frozenset({0}))),
                               "0-3", "0-1")
        self.assertEqual((-1, "1-2", "0"), tuple(pinned[key] for key in ("CpuQuota", "CpusetCpus", "CpusetMems")))

    def test_the_same_spec_gives_the_same_configuration(self):
        spec = container(root=RootDisk("any"), parts=(gpu_grant(), vf_grant()), labels={"b": "1", "a": "2"})
        self.assertEqual(config.container(spec, DISK), config.container(spec, DISK))

    def test_cpus(self):
        for wanted, expected in (
            (Cpu(2), {"CpuPeriod": 100_000, "CpuQuota": 200_000}),
            (Cpu(2, share=50), {"CpuPeriod": 100_000, "CpuQuota": 50_000}),
            (Cpu(3, cores=frozenset({0, 2, 3})), {"CpusetCpus": "0,2-3"}),
            (Cpu(1, cores=frozenset({1}), nodes=frozenset({0, 1}), share=100),
             {"CpuPeriod": 100_000, "CpuQuota": 100_000, "CpusetCpus": "1", "CpusetMems": "0-1"}),
            (Cpu(1, cores=frozenset({1}), priority=10), {"CpusetCpus": "1", "CpuShares": 1024}),
            (Cpu(1, cores=frozenset({1}), priority=0), {"CpusetCpus": "1", "CpuShares": 1014}),
        ):
            self.assertEqual(expected, config.cpu(wanted))

    def test_disk_limits(self):
        limits = host(root=RootDisk("any", 10 * GiB, IoLimit(1, 2, 3, 4)))
        self.assertEqual({"size": str(10 * GiB)}, limits["StorageOpt"])
        self.assertEqual([[{"Path": DISK, "Rate": rate}] for rate in (1, 2, 3, 4)],
                         [limits[f"BlkioDevice{key}"] for key in ("ReadBps", "WriteBps", "ReadIOps", "WriteIOps")])
        self.assertRaises(SpecError, config.container, container(root=RootDisk("any", io=IoLimit(write_iops=9))), None)

    def test_tenant_values_stay_values(self):
        nasty = 'a"; $(reboot)\n--privileged'
        body = made(environment={"K": nasty}, labels={"name": nasty})
        self.assertEqual([f"K={nasty}"], body["Env"])
        self.assertEqual({"containerhost": json.dumps({"name": nasty})}, body["Labels"])

    def test_environment_of_grants_wins(self):
        grant = Grant(GPU, environment={"NVIDIA_VISIBLE_DEVICES": "void"})
        self.assertEqual(["A=b", "NVIDIA_VISIBLE_DEVICES=void"],
                         made(parts=(grant,), environment={"NVIDIA_VISIBLE_DEVICES": "all", "A": "b"})["Env"])

    def test_mounts_are_read_only_unless_told(self):
        mounts = host(mounts=(Mount("a", "/s", "/t"), Mount("b", "/u", "/v", read_only=False)))["Mounts"]
        self.assertEqual([{"Type": "bind", "Source": "/s", "Target": "/t", "ReadOnly": True},
                          {"Type": "bind", "Source": "/u", "Target": "/v", "ReadOnly": False}], mounts)

    def test_rdma_alone_locks_memory(self):
        self.assertEqual((["IPC_LOCK"], [{"Name": "memlock", "Soft": -1, "Hard": -1}]),
                         tuple(host(parts=(vf_grant(),))[key] for key in ("CapAdd", "Ulimits")))
        self.assertEqual([], host(parts=(gpu_grant(),))["CapAdd"])

    def test_the_largest_limit_holds(self):
        limits = [{"memlock": "5", "nofile": "7"}, {"memlock": "unlimited"}, {"nofile": "3"}]
        ulimits = config.start_config([Grant(GPU, limits=each) for each in limits])["Ulimits"]
        self.assertEqual([("memlock", -1), ("nofile", 7)], [(item["Name"], item["Hard"]) for item in ulimits])

    def test_what_cannot_be(self):
        for more, word in (
            ({"security": Security(privileged=True)}, "privileged"),
            ({"security": Security(nesting=True)}, "containers of its own"),
            ({"cloud_init": CloudInit(user_data="x")}, "cloud-init"),
            ({"rescue_mount": RescueMount("c2", "/t")}, "root disk"),
            ({"memory": Memory(GiB, {2 << 20: GiB})}, "huge pages"),
            ({"parts": (BlockDevice("v", "/dev/loop0", "/dev/vdb"),)}, "block device v"),
            ({"parts": (PoolDisk("d", "p", "v", "/d"),)}, "pool disk d"),
            ({"parts": (BridgedNic("eth0", "br0", "h0", "02:00:00:00:00:01"),)}, "bridged nic eth0"),
            ({"parts": (Nic("eth0", "h0", mtu=9000),)}, "MTU"),
            ({"parts": (Nic("eth0", "h0"), Nic("eth0", "h1"))}, "eth0"),
        ):
            self.assertIn(word, str(self.assertRaises(SpecError, made, **more)))


class TestParts(testtools.TestCase):
    def test_what_a_grant_brings(self):
        self.assertEqual(
            Record(frozenset({"0000:5e:00.1"}),
                   frozenset({Node("/dev/infiniband/uverbs0", 231, 192), Node("/dev/infiniband/rdma_cm", 10, 58)}),
                   frozenset({Netdev("ibs1v0", "ib0")})), config.part_record(vf_grant(0)))
        self.assertEqual(Record(netdevs=frozenset({Netdev("one-1-0", "eth0")})),
                         config.part_record(Nic("eth0", "one-1-0")))

    def test_libraries_come_with_a_gpu_and_stay_as_long_as_it_runs(self):
        record = config.part_record(gpu_grant(libraries=frozenset({"compute"})))
        self.assertEqual(frozenset({"compute"}), record.libraries)
        self.assertEqual(Record(libraries=frozenset({"compute"})), record - config.going(gpu_grant(), [], record))

    def test_what_is_shared_stays(self):
        self.assertEqual({"/dev/infiniband/uverbs1"},
                         {node.path for node in config.going(vf_grant(1), [vf_grant(0)], BOTH).nodes})
        alone = config.part_record(vf_grant(1))
        self.assertEqual(alone, config.going(vf_grant(1), [], alone))

    def test_nodes_that_a_broken_device_does_not_tell_any_more_go_with_it(self):
        whole = gpu_grant()
        record = config.record_of((whole, vf_grant(0), vf_grant(1)))
        fallen = dataclasses.replace(whole, device=dataclasses.replace(whole.device, health=("fallen off the bus",)),
                                     nodes=whole.nodes[1:2])
        self.assertEqual(BOTH.nodes, (record - config.going(fallen, (vf_grant(0), vf_grant(1)), record)).nodes)
        # The nodes of a broken device that stays are unknown.
        self.assertEqual({"/dev/infiniband/uverbs1"},
                         {node.path for node in config.going(vf_grant(1), (vf_grant(0), fallen), record).nodes})

    def test_nodes_of_earlier_numbers_go_with_any_device(self):
        moved = Record(nodes=frozenset({Node("/dev/nvidia1", 195, 1)}))
        record = BOTH | moved
        self.assertEqual({"/dev/infiniband/uverbs1", "/dev/nvidia1"},
                         {node.path for node in config.going(vf_grant(1), [vf_grant(0)], record).nodes})
        self.assertEqual(frozenset(), config.going(Nic("eth0", "one-1-0"), (), record).nodes)

    def test_what_a_container_lacks_for_a_grant(self):
        self.assertEqual(("locked memory (unlimited)", "capability IPC_LOCK"), config.lacking(host(), [vf_grant()]))
        self.assertEqual((), config.lacking(host(parts=(vf_grant(),)), [vf_grant(1)]))
        self.assertEqual((), config.lacking({"Ulimits": None, "CapAdd": None}, [gpu_grant()]))
        self.assertEqual(("locked memory (unlimited)",), config.lacking(
            {"Ulimits": [{"Name": "memlock", "Hard": 1 << 20}], "CapAdd": ["CAP_IPC_LOCK"]}, [vf_grant()]))

    def test_management_nodes_need_no_more_than_others(self):
        self.assertTrue(config.has_rdma(Grant(GPU, (CharNode("/dev/infiniband/umad0", 231, 0),))))
        self.assertFalse(config.has_rdma(gpu_grant()))
