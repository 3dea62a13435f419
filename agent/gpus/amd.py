"""AMD GPUs, read from sysfs, where the amdgpu driver shows them: no library is needed. The driver shows no processes,
so whether a GPU is idle follows from its utilisation and memory alone."""

from collections.abc import Sequence
from pathlib import Path

from distributed_grid.protocol.nodes import GpuFacts, GpuSample

VENDOR = "0x1002"
BY_ADDRESS = "PCI-"
"""What a GPU without a UUID is called by, before its PCI address; ROCr knows that by its number only."""


class AmdBackend:
    """Reads `/sys/class/drm/card*/device`; `root` stands for `/`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.name = "amd"
        self.error = self.note = ""
        self._devices: dict[str, Path] = {}
        facts: list[GpuFacts] = []
        broken: list[str] = []
        for card in sorted((root / "sys/class/drm").glob("card*"), key=_number):
            device = card / "device"
            if not card.name[4:].isdigit() or _text(device / "vendor") != VENDOR:
                continue
            try:
                total = int((device / "mem_info_vram_total").read_text())
            except (OSError, ValueError) as error:
                broken.append(f"{card.name}: {error}")
                continue
            uuid = _uuid(device)
            self._devices[uuid] = device
            model = _text(device / "product_name") or f"AMD GPU {_text(device / 'device')}"
            numa = _text(device / "numa_node")
            place = int(numa) if numa.isdigit() else -1  # -1: unknown, as the kernel says it
            facts.append(GpuFacts(uuid, len(facts), model.strip(), total, numa=place))
        self._facts = tuple(facts)
        self.error = "; ".join(broken)
        if not facts:
            self.note = "no AMD GPU"

    def facts(self) -> tuple[GpuFacts, ...]:
        """The GPUs found at the start."""
        return self._facts

    def sample(self, own: set[int]) -> tuple[GpuSample, ...]:
        """Read all GPUs."""
        return tuple(self._read(gpu) for gpu in self._facts)

    def environment(self, uuids: Sequence[str]) -> dict[str, str]:
        """The variables by which a program sees these GPUs and no others. Only ROCr knows GPUs by UUID, and an empty
        list as none; HIP takes numbers of those that ROCr shows (CUDA's variable is another name for its own)."""
        index = {gpu.uuid: gpu.index for gpu in self._facts}
        shown = ",".join(str(index.get(uuid, "")) if uuid.startswith(BY_ADDRESS) else uuid for uuid in uuids)
        numbers = ",".join(map(str, range(len(uuids))))
        return {"ROCR_VISIBLE_DEVICES": shown, "HIP_VISIBLE_DEVICES": numbers, "CUDA_VISIBLE_DEVICES": numbers}

    def _read(self, gpu: GpuFacts) -> GpuSample:
        device = self._devices[gpu.uuid]
        try:
            total = int((device / "mem_info_vram_total").read_text())
            used = int((device / "mem_info_vram_used").read_text())
            busy = float((device / "gpu_busy_percent").read_text())
        except (OSError, ValueError) as error:
            return GpuSample(gpu.uuid, memory_total=gpu.memory, error=str(error))
        heats = [_text(file) for file in sorted(device.glob("hwmon/hwmon*/temp1_input"))]
        heat = next((int(one) / 1000 for one in heats if one.isdigit()), 0.0)
        return GpuSample(gpu.uuid, busy, used, total, heat)


def _number(card: Path) -> tuple[int, str]:
    tail = card.name[4:]
    return (int(tail) if tail.isdigit() else 0, card.name)


def _uuid(device: Path) -> str:
    """ROCm's name for it (for ROCR_VISIBLE_DEVICES); its PCI address if it has none."""
    unique = _text(device / "unique_id")
    return f"GPU-{unique.lower().removeprefix('0x')}" if unique else f"{BY_ADDRESS}{device.resolve().name}"


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
