# SPDX-License-Identifier: Apache-2.0
import testtools

from containerhost.engines.spec import Health, Program
from onedock import attributes
from onedock.attributes import RAW, Attributes
from onedriver.errors import BadInput, NotSupported

ALL = {"DOCKER_ENTRYPOINT": "/bin/a 'b c'", "DOCKER_COMMAND": r"d \"e\" $(f) ';' ''", "DOCKER_WORKDIR": "/srv/a b",
       "DOCKER_USER": "app:1000", "DOCKER_HOSTNAME": "web.example", "DOCKER_ENVIRONMENT": "A=1 B='x y' C= D=a=b",
       "DOCKER_READ_ONLY": "yes", "DOCKER_HEALTH_COMMAND": "curl -f localhost", "DOCKER_HEALTH_INTERVAL": "30",
       "DOCKER_HEALTH_RETRIES": "3"}


class AttributesTest(testtools.TestCase):
    def test_nothing_is_what_the_image_says(self) -> None:
        self.assertEqual(Attributes(Program(), {}, False, {}), attributes.read({}, {}))

    def test_all_of_them(self) -> None:
        found = attributes.read(ALL, {"SET_HOSTNAME": "other"})
        self.assertEqual(Program(("/bin/a", "b c"), ("d", '"e"', "$(f)", ";", ""), "/srv/a b", "app:1000",
                                 Health(("curl", "-f", "localhost"), interval=30, retries=3), "web.example"),
                         found.program)
        self.assertEqual({"A": "1", "B": "x y", "C": "", "D": "a=b"}, found.environment)
        self.assertTrue(found.read_only)

    def test_the_context_names_the_host(self) -> None:
        self.assertEqual("web", attributes.read({}, {"SET_HOSTNAME": "web"}).program.hostname)

    def test_a_check_of_the_image_can_be_ended(self) -> None:
        self.assertEqual(Health(()), attributes.read({"DOCKER_HEALTH_COMMAND": "NONE"}, {}).program.health)

    def test_what_is_none_is_refused_by_name(self) -> None:
        for key, value in (
            ("DOCKER_COMMAND", "a 'b"), ("DOCKER_COMMAND", "a \x00"), ("DOCKER_ENTRYPOINT", "x\x1b[0m"),
            ("DOCKER_COMMAND", "x " * 1001), ("DOCKER_ENVIRONMENT", "A"), ("DOCKER_ENVIRONMENT", "a-b=1"),
            ("DOCKER_ENVIRONMENT", "=1"), ("DOCKER_WORKDIR", "etc"), ("DOCKER_WORKDIR", "/a/../b"),
            ("DOCKER_WORKDIR", "/.."), ("DOCKER_WORKDIR", "/a\nb"), ("DOCKER_USER", "a b"), ("DOCKER_USER", "-x"),
            ("DOCKER_USER", "a:b:c"), ("DOCKER_HOSTNAME", "-a"), ("DOCKER_HOSTNAME", "a" * 64),
            ("DOCKER_HOSTNAME", "a;b"), ("DOCKER_READ_ONLY", "maybe"), ("DOCKER_HEALTH_INTERVAL", "0"),
            ("DOCKER_HEALTH_INTERVAL", "1s"), ("DOCKER_HEALTH_RETRIES", "2")):
            own = {key: value}
            self.assertIn(key, str(self.assertRaises(BadInput, attributes.read, own, {})))

    def test_what_is_not_known_is_refused(self) -> None:
        error = self.assertRaises(NotSupported, attributes.read, {"DOCKER_PRIVILEGED": "YES"}, {})
        self.assertIn("DOCKER_PRIVILEGED", str(error))

    def test_raw_options_only_where_allowed_and_never_the_worst(self) -> None:
        raw = "cap-add=NET_ADMIN cap-add=cap_net_raw shm-size=64 pids-limit=100 sysctl=net.core.somaxconn=1024"
        self.assertEqual({"CapAdd": ["NET_ADMIN", "NET_RAW"], "ShmSize": 64 << 20, "PidsLimit": 100,
                          "Sysctls": {"net.core.somaxconn": "1024"}},
                         attributes.read({"DOCKER_RAW": raw}, {}, RAW).raw)
        for option in raw.split():
            self.assertIn("not allowed on this host",
                          str(self.assertRaises(NotSupported, attributes.read, {"DOCKER_RAW": option}, {})))
        for option in ("privileged=true", "--privileged", "device=/dev/sda", "volume=/:/host", "", "cap-add=SYS_ADMIN",
                       "cap-add=ALL", "cap-add=cap_sys_module", "cap-add=x;y", "pid=host"):
            if option:
                self.assertRaises(NotSupported, attributes.read, {"DOCKER_RAW": option}, {}, RAW)
        for option in ("sysctl=kernel.core_pattern=1", "sysctl=net.x=|/y", "sysctl=", "shm-size=-1", "shm-size=1g",
                       "pids-limit=0"):
            self.assertRaises(BadInput, attributes.read, {"DOCKER_RAW": option}, {}, RAW)
