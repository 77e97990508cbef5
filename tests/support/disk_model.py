"""A disk that forgets what nobody synced: what may lie on it after a power cut, from a real trace.

`record` runs a process under strace and keeps what it did to one folder, in order: made, written,
cut, synced, renamed, removed. `Disk` plays that back under the weakest promises a file system
gives:

- written bytes and sizes are safe after fsync or fdatasync of the file, names after that of their
  folder; syncing a file says nothing of its name;
- of what is not safe, any part may be there after the cut: each write, or each sector of 512
  bytes of it, the later ones without the earlier ones; holes read as zeros;
- names of a folder change in order (what every journalling file system does);
- a write leaves the bytes beside it alone (what SQLite relies on and disks give);
- what is mapped into memory (SQLite's -shm) may hold anything.
"""

import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

SECTOR = 512
_CALLS = (
    "openat,open,creat,write,writev,pwrite64,pwritev,ftruncate,truncate,fallocate,fsync,fdatasync,"
    "rename,renameat,renameat2,unlink,unlinkat,link,linkat,symlink,symlinkat,mkdir,mkdirat,mmap,"
    "copy_file_range,sendfile,splice"
)
_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+|0x[0-9a-f]+|\?)")
_BEGUN = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)$")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_OPEN_FILE = re.compile(r"^(\d+)<((?:\\x[0-9a-f]{2})*)>(\(deleted\))?")


class Act(StrEnum):
    """What was done."""

    MAKE = "make"
    FOLDER = "folder"
    WRITE = "write"
    SIZE = "size"
    SYNC = "sync"
    RENAME = "rename"
    REMOVE = "remove"
    TOLD = "told"


@dataclass(frozen=True, slots=True)
class Step:
    """One act on the folder, or one line that the process printed."""

    act: Act
    path: str = ""
    other: str = ""
    """New name."""
    data: bytes = b""
    at: int = 0
    """Offset, or new size."""


class NoTracing(Exception):
    """Processes cannot be traced here."""


def record(command: list[str], folder: Path, out: Path) -> list[Step]:
    """Run a command and return what it did to `folder` and printed.

    Raises:
        NoTracing: strace is not here or may not trace.
    """
    tracer = ["strace", "-f", "--seccomp-bpf", "-qq", "-y", "-xx", "-s", str(1 << 24)]
    try:
        done = subprocess.run(
            [*tracer, "-o", str(out), "-e", f"trace={_CALLS}", *command],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise NoTracing("strace is not installed") from None
    if "ptrace" in done.stderr:
        raise NoTracing(f"may not trace processes: {done.stderr.strip()[:100]}")
    if done.returncode not in (0, -9, 137):
        raise AssertionError(f"{command}: {done.returncode}: {done.stderr[-500:]}")
    return list(_steps(out.read_text("ascii"), str(folder)))


def _calls(text: str) -> Iterator[tuple[str, str, str]]:
    """(name, arguments, result) of every call; what a process prints counts from its begin."""
    open_calls: dict[str, tuple[str, str]] = {}
    for written in text.splitlines():
        line = written
        if begun := _BEGUN.match(line):
            pid, name, arguments = begun.groups()
            if name == "write" and arguments.startswith("1<"):
                yield name, arguments, "1"
            else:
                open_calls[pid] = (name, arguments)
            continue
        if resumed := _RESUMED.match(line):
            pid, name, rest = resumed.groups()
            if pid not in open_calls:
                continue
            _, arguments = open_calls.pop(pid)
            line = f"{pid} {name}({arguments}{rest}"
        if whole := _LINE.match(line):
            yield whole.group(2), whole.group(3), whole.group(4)
    # what a kill left unfinished may have happened or not: a cut in the middle of a write covers it


def _text(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


def _steps(text: str, folder: str) -> Iterator[Step]:
    """The calls that change the folder.

    Raises:
        AssertionError: a call that this model does not know touches it.
    """
    for name, arguments, result in _calls(text):
        strings = [_text(found) for found in _STRING.findall(arguments)]
        opened = _OPEN_FILE.match(arguments)
        if name == "write" and arguments.startswith("1<"):
            yield Step(Act.TOLD, data=strings[0])
            continue
        if result.startswith(("-", "?")) or (opened and opened.group(3)):
            continue  # it failed, or the kill came first
        numbers = arguments.rsplit(", ", 2)
        if name == "mmap":
            if "MAP_SHARED" in arguments and "PROT_WRITE" in arguments:
                mapped = _text("".join(re.findall(r"<((?:\\x[0-9a-f]{2})*)>", arguments)))
                mine = mapped.decode().startswith(folder)
                assert not mine or mapped.endswith(b"-shm"), arguments[:300]
            continue
        path = _text(opened.group(2)).decode() if opened else strings[0].decode()
        if not path.startswith(folder) and path != str(Path(folder).parent):
            continue
        match name:
            case "openat" | "open" | "creat":
                if "O_CREAT" in arguments:
                    yield Step(Act.MAKE, path)
                assert "O_TRUNC" not in arguments, path
            case "mkdir":
                yield Step(Act.FOLDER, path)
            case "write" if path == folder + "/lock":
                pass
            case "pwrite64":
                data = strings[0][: int(result)]
                yield Step(Act.WRITE, path, data=data, at=int(numbers[-1]))
            case "ftruncate":
                yield Step(Act.SIZE, path, at=int(numbers[-1]))
            case "fallocate":  # of a new file: nothing is longer than it makes it
                yield Step(Act.SIZE, path, at=int(numbers[-2]) + int(numbers[-1]))
            case "fsync" | "fdatasync":
                yield Step(Act.SYNC, path)
            case "rename":
                yield Step(Act.RENAME, path, other=strings[1].decode())
            case "unlink":
                yield Step(Act.REMOVE, path)
            case _:
                raise AssertionError(f"{name} of {path} is not in the model")


@dataclass(eq=False)
class _File:
    """One file: what is safe, and what was done since."""

    safe: bytearray = field(default_factory=bytearray)
    since: list[Step] = field(default_factory=list)


def _play(content: bytearray, step: Step, data: bytes | None = None) -> None:
    if step.act is Act.SIZE:
        del content[step.at :]
        content.extend(bytes(step.at - len(content)))
        return
    data = step.data if data is None else data
    if data:
        content.extend(bytes(max(0, step.at - len(content))))
        content[step.at : step.at + len(data)] = data


class Disk:
    """One folder on a disk that forgets."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._now: dict[str, _File | None] = {}
        """Files by path, as running processes see them; None is a folder."""
        self._safe: dict[str, _File | None] = {}
        self._names: list[tuple[Step, _File | None]] = []
        """Changes of names that are not safe."""

    def do(self, step: Step) -> None:
        """Let one step happen."""
        match step.act:
            case Act.MAKE:
                if step.path not in self._now:
                    self._name(step, _File())
            case Act.FOLDER:
                self._name(step, None)
            case Act.RENAME | Act.REMOVE:
                self._name(step, self._now[step.path])
            case Act.WRITE | Act.SIZE:
                file = self._now[step.path]
                assert file is not None
                file.since.append(step)
            case Act.SYNC:
                self._sync(step.path)
            case Act.TOLD:
                pass

    def _name(self, step: Step, file: _File | None) -> None:
        _rename(self._now, step, file)
        self._names.append((step, file))

    def _sync(self, path: str) -> None:
        file = self._now.get(path)
        if file is not None:
            for step in file.since:
                _play(file.safe, step)
            file.since.clear()
            return
        left = []
        for step, named in self._names:
            if str(Path(step.path).parent) == path:
                _rename(self._safe, step, named)
            else:
                left.append((step, named))
        self._names = left

    def cut(self, rng: random.Random, during: Step | None, tear: int) -> dict[str, bytes]:
        """What may lie in the folder after a power cut now; the disk itself goes on.

        Args:
            rng: decides about everything that is not safe.
            during: the write that the cut falls into, of which the first bytes got through.
            tear: how many.

        Returns:
            contents by path; the folder itself may be missing, then it is empty.
        """
        names = dict(self._safe)
        keep = rng.choice(("none", "all", "some", "sectors"))
        kept = {"none": 0, "all": len(self._names)}.get(keep, rng.randint(0, len(self._names)))
        for step, file in self._names[:kept]:
            _rename(names, step, file)
        if self._folder not in names:
            return {}
        torn = self._now.get(during.path) if during is not None else None
        return {
            path: self._content(path, file, rng, keep, during if file is torn else None, tear)
            for path, file in names.items()
            if file is not None
        }

    def _content(
        self, path: str, file: _File, rng: random.Random, keep: str, during: Step | None, tear: int
    ) -> bytes:
        if path.endswith("-shm"):
            return rng.randbytes(rng.choice((0, 100, 32_768)))
        content = bytearray(file.safe)
        for step in file.since:
            if keep == "all" or (keep != "none" and rng.random() < 0.5):
                _play(content, step)
            elif keep == "sectors" and step.act is Act.WRITE:
                for begin in range(0, len(step.data), SECTOR):
                    if rng.random() < 0.5:
                        part = step.data[begin : begin + SECTOR]
                        _play(content, Step(Act.WRITE, at=step.at + begin, data=part))
        if during is not None:
            _play(content, during, during.data[:tear])
        return bytes(content)


def _rename(names: dict[str, _File | None], step: Step, file: _File | None) -> None:
    if step.act in (Act.RENAME, Act.REMOVE):
        names.pop(step.path, None)
    if step.act is not Act.REMOVE:
        names[step.other or step.path] = file
