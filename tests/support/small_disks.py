"""File systems of our own, to be filled or taken away."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(mount: Path, options: str) -> Iterator[Path]:
    """A file system in memory at `mount`; the test is skipped where nobody may mount one."""
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("may not mount file systems")
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


def fill(mount: Path) -> Path:
    """Not one byte more fits; returns the file that took them all."""
    ballast = mount / "ballast"
    with pytest.raises(OSError, match="No space"), ballast.open("wb", buffering=0) as handle:
        while True:
            handle.write(bytes(4096))
    return ballast


def remount(mount: Path, how: str) -> None:
    """`how`: ro or rw."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(mount)], check=True)
