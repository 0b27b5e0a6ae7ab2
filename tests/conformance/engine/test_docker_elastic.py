# SPDX-License-Identifier: Apache-2.0
from containerhost.engines.capabilities import LiveSizes
from containerhost.engines.docker.live import Live, LiveState
from containerhost.linux.idlist import id_list
from containerhost.linux.sysfs import Host
from tests.conformance.engine import elastic
from tests.functional_docker.base import DockerTestCase


class DockerElasticTest(elastic.ElasticConformance, DockerTestCase):
    def sizes(self) -> LiveSizes[LiveState]:
        return Live(self.engine)

    def options(self) -> list[str]:
        return ["--engine", f"docker={self.daemon.endpoint}", "--records", str(self.daemon.records)]

    def cores_of_one(self) -> int:
        return len(id_list(Host().text("/sys/devices/system/cpu/online")))

    def test_label_of_an_image_opts_in_to_nothing(self) -> None:
        self.member("c1")
        label = self.daemon.api().inspect_container("c1")["Config"]["Labels"]
        self.daemon.api().create_container("polite", name="foreign", labels=label)
        self.daemon.api().start("foreign")
        self.assertEqual(["it/c1"], [row["container"] for row in self.service().plan()])
