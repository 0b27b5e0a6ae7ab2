"""What an image's configuration asks Docker for, beside the container's limits."""

from tests.functional_docker import dockerd
from tests.functional_one.vms import Machine
from tests.functional_onedock.base import BOOT_UNDEPLOYED, POWEROFF, RESUME, UNDEPLOY, OnedockCase

INTERVAL = 5 * 10**9  # ns
WANTS = ("VOLUME /srv/data", "VOLUME /etc/link/data", "HEALTHCHECK --interval=1ms --timeout=1s CMD true")
IMAGE = "hostile"


class HostileImageTest(OnedockCase):
    def setUp(self) -> None:
        super().setUp()
        api = self.node.docker.daemon.api()
        program = dockerd.IMAGES["polite"]
        api.import_image_from_data(dockerd.root_file_system(), repository=IMAGE, tag="latest",
                                   changes=[f'CMD ["/bin/sh", "-c", "{program}"]', *WANTS])
        self.addCleanup(api.remove_image, IMAGE)

    def test_data_in_an_images_volume_is_in_the_root(self) -> None:
        """Else no quota would hold it, and it would be lost with a save, an undeployment or a revert."""
        machine = self.deployed(Machine(), image=IMAGE)
        self.assertNotIn("/srv/data", self.shell(machine, "cat /proc/mounts"))
        self.shell(machine, "echo mine > /srv/data/file")
        self.ok("cancel", machine, lcm=POWEROFF)
        self.ok("deploy", machine, lcm=RESUME)
        self.assertEqual("mine\n", self.shell(machine, "cat /srv/data/file"))
        self.ok("cancel", machine, lcm=UNDEPLOY)
        self.ok("deploy", machine, lcm=BOOT_UNDEPLOYED)
        self.assertEqual("mine\n", self.shell(machine, "cat /srv/data/file"))

    def test_health_checks_of_an_image_leave_the_host_time(self) -> None:
        machine = self.deployed(Machine(), image=IMAGE)
        check = self.inspect(machine)["Config"]["Healthcheck"]
        self.assertEqual((["CMD-SHELL", "true"], INTERVAL), (check["Test"], check["Interval"]))
