"""What a VM is called on its node, the same with every engine."""

LABEL = "one.vm"  # on each container of a VM: the VM's id
PREFIX = "one-"


def name(vm_id: int) -> str:
    """The container's name, which is also the deploy id."""
    return f"{PREFIX}{vm_id}"
