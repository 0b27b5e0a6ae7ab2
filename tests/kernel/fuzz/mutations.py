# SPDX-License-Identifier: Apache-2.0
"""Take one protection away from each parser: the fuzzer has to find that it is gone."""

from typing import NamedTuple


class Mutation(NamedTuple):
    """A protection in a file of this project, and what stands there without it."""

    file: str
    protection: str
    without: str


MUTATIONS = {
    "allocation record": Mutation("containerhost/allocation/record.py", "except (KeyError, TypeError, ValueError, ",
                                  "except ("),
    "AMD's kernel messages": Mutation("containerhost/vendors/drmlog.py", "if said is None:", "if False:"),
    "archive": Mutation("containerhost/images/members.py", "except (tarfile.TarError, ValueError, ", "except ("),
    "authentication challenges": Mutation("onedock/datastore/challenges.py", "if match is None:", "if False:"),
    "control groups": Mutation("containerhost/linux/controlgroups.py", 'table.decode("utf-8", "surrogateescape")',
                               "table.decode()"),
    "Docker's record": Mutation("containerhost/engines/docker/record.py", "except (ValueError, KeyError, TypeError, ",
                                "except ("),
    "file about devices": Mutation("containerhost/inventory/devicefile.py", "except (yaml.YAMLError, ", "except ("),
    "image configuration": Mutation("onedock/datastore/content.py", "except (ValueError, RecursionError) as error:\n"
                                    '        raise Corrupt(f"{what}: a part that should be JSON is not")',
                                    'except RecursionError as error:\n        raise Corrupt("")'),
    "image reference": Mutation("onedock/datastore/reference.py", "if found is None:", "if False:"),
    "job file": Mutation("hpcjob/job.py", "except (yaml.YAMLError, ", "except ("),
    "LXD's metadata.yaml": Mutation("containerhost/images/metadata.py", "except (yaml.YAMLError, ", "except ("),
    "PCI address": Mutation("onedriver/pciaddress.py", "if match is None:", "if False:"),
    "resources acknowledged": Mutation("containerhost/guest/resources.py", "except (ValueError, RecursionError):",
                                       "except RecursionError:"),
    "root disk": Mutation("onedock/imageref.py", "except (ValueError, TypeError, ", "except (TypeError, "),
    "state of a root": Mutation("lxdone/root/root_state.py", "except (ValueError, TypeError)", "except TypeError"),
    "VM of oned": Mutation("onedriver/document.py", "except (etree.XMLSyntaxError, ", "except ("),
    "Xids": Mutation("containerhost/vendors/nvidia/xidlog.py", "if match and len", "if len"),
}
