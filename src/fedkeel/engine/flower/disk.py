"""What a device remembers between rounds, on its disk: one file for each version that may still count."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import safetensors.torch

from ...errors import InputError
from ...files import check_tensors, leftover, write_tensors
from ...messages import Slots, flatten

NONE = -1  # the version of a memory that is not there


class Disk:
    """The memory of one client in one training.

    Whether an update was accepted is known to the device only with the next message: until then the memory before it is
    kept, so that an update that was lost or refused leaves both sides as they were.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     disk = Disk(Path(folder, "client-3"))
    ...     disk.write(0, {"scaffold": {"ci": torch.ones(1, 2)}})
    ...     disk.write(1, {"scaffold": {"ci": torch.zeros(1, 2)}})
    ...     kept = disk.read(0)  # the server did not accept version 1
    ...     [file.name for file in disk.folder.iterdir()]
    ['0.safetensors']
    >>> kept["scaffold"]["ci"].tolist()
    [[1.0, 1.0]]
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, accepted: int) -> Slots | None:
        """The memory of the accepted version, None if it is not there or damaged; all others are removed."""
        if not self.folder.exists():
            return None
        kept = self._file(accepted)
        for file in self.folder.iterdir():
            ours = file.suffix == kept.suffix or leftover(file.name) is not None
            if ours and file != kept:
                file.unlink(missing_ok=True)
        if accepted == NONE or not kept.exists():
            return None
        try:
            check_tensors(kept)
        except InputError:
            return None
        slots: Slots = {}
        for path, value in safetensors.torch.load_file(kept).items():
            slot, _, name = path.partition("/")
            slots.setdefault(slot, {})[name] = value
        return slots

    def write(self, version: int, slots: Slots) -> None:
        """Keep this memory beside the one that it follows; only the owner may read it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # not our folder
            os.chmod(self.folder, 0o700)
        before = os.umask(0o077)
        try:
            write_tensors(self._file(version), flatten(slots), {"version": version})
        finally:
            os.umask(before)

    def _file(self, version: int) -> Path:
        return self.folder / f"{version}.safetensors"
