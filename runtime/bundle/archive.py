"""The bundle file: an uncompressed zip with six known members, in one form only.

Any zip tool opens it, but the reader here does not search, seek or guess: it walks the bytes from
the first to the last and compares every header with the one header this project writes. So there
is no second reading of the same file: no paths, links, doubled or look-alike names, comments,
compression, nested archives or bytes before, between or behind that could matter.
"""

import os
import stat
import struct
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from steadyhand.controllers.errors import BundleError
from steadyhand.runtime.bundle.manifest import MANIFEST, PARTS, SIGNATURE

MEMBERS: Final = (MANIFEST, SIGNATURE, *PARTS)
MAX_BYTES: Final = 512 * 2**20
READ_TIMEOUT_S: Final = 30.0

# APPNOTE.TXT 4.3.7, 4.3.12, 4.3.16: version 2.0, no flags, stored, 1980-01-01 00:00.
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_VERSION, _MADE_BY_UNIX, _DATE = 20, (3 << 8) | 20, (1 << 5) | 1
_REGULAR_FILE = (stat.S_IFREG | 0o644) << 16


def write_archive(members: Mapping[str, bytes]) -> bytes:
    """Bytes of the archive holding exactly `MEMBERS`.

    Raises:
        BundleError: BUNDLE_ARCHIVE members missing or unknown; BUNDLE_LIMIT too large.
    """
    if set(members) != set(MEMBERS):
        raise BundleError(
            "BUNDLE_ARCHIVE", f"members {sorted(members)}: must be {', '.join(MEMBERS)}"
        )
    out, central = bytearray(), bytearray()
    for name in MEMBERS:
        content = members[name]
        offset, crc = len(out), zlib.crc32(content)
        out += _local_header(name, crc, len(content)) + content
        central += _central_header(name, crc, len(content), offset)
    out += central + _end(len(central), len(out))
    if len(out) > MAX_BYTES:
        raise BundleError("BUNDLE_LIMIT", f"bundle of {len(out)} bytes: at most {MAX_BYTES}")
    return bytes(out)


def read_archive(data: bytes) -> dict[str, bytes]:
    """Members of the archive `data`; only its frame is read, no content.

    Raises:
        BundleError: BUNDLE_HASH the file is empty or cut short; BUNDLE_ARCHIVE any byte of the
            frame differs from the one form.
    """
    members: dict[str, bytes] = {}
    central = bytearray()
    position = 0
    for name in MEMBERS:
        head = data[position : position + _LOCAL.size]
        _enough(head, _LOCAL.size, name)
        crc, size = _LOCAL.unpack(head)[6:8]
        wanted = _local_header(name, crc, size)
        found = data[position : position + len(wanted)]
        if found != wanted:
            _enough(found, len(wanted), name)
            raise _refuse(position, f"{_name_of(data, position)} where {name} must be stored")
        start = position + len(wanted)
        members[name] = data[start : start + size]
        _enough(members[name], size, name)
        central += _central_header(name, crc, size, position)
        position = start + size
    tail = bytes(central) + _end(len(central), position)
    if data[position:] != tail:
        _enough(data[position:], len(tail), "the directory")
        raise _refuse(position, "the directory differs from the members, or bytes follow it")
    return members


def read_file(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """All bytes of the regular file `path`, read exactly once.

    What is verified and what is used are both made from these bytes, so replacing the file
    meanwhile changes nothing.

    Raises:
        BundleError: BUNDLE_FILE not there, a link, a device, a pipe; BUNDLE_LIMIT too large, or
            too slow in coming.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise BundleError(
            "BUNDLE_FILE", f"{path}: {error}; name a regular file, not a link"
        ) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise BundleError("BUNDLE_FILE", f"{path}: not a regular file")
        if status.st_size > max_bytes:
            raise BundleError(
                "BUNDLE_LIMIT", f"{path}: {status.st_size} bytes, at most {max_bytes} are allowed"
            )
        return read_stream(lambda size: os.read(fd, size), str(path), max_bytes=max_bytes)
    finally:
        os.close(fd)


def read_stream(
    read: Callable[[int], bytes],
    name: str,
    *,
    max_bytes: int = MAX_BYTES,
    timeout_s: float = READ_TIMEOUT_S,
    clock: Callable[[], float] = time.monotonic,
) -> bytes:
    """Everything `read` gives, within `max_bytes` and `timeout_s`.

    Raises:
        BundleError: BUNDLE_LIMIT endless or slow; BUNDLE_FILE cannot be read.
    """
    deadline = clock() + timeout_s
    data = bytearray()
    while True:
        try:
            chunk = read(min(1 << 20, max_bytes + 1 - len(data)))
        except OSError as error:
            raise BundleError("BUNDLE_FILE", f"{name}: {error}") from None
        if not chunk:
            return bytes(data)
        data += chunk
        if len(data) > max_bytes:
            raise BundleError("BUNDLE_LIMIT", f"{name}: more than {max_bytes} bytes")
        if clock() > deadline:
            raise BundleError(
                "BUNDLE_LIMIT",
                f"{name}: {len(data)} bytes in {timeout_s:g} s and no end: copy it here first",
            )


def _local_header(name: str, crc: int, size: int) -> bytes:
    head = _LOCAL.pack(b"PK\x03\x04", _VERSION, 0, 0, 0, _DATE, crc, size, size, len(name), 0)
    return head + name.encode("ascii")


def _central_header(name: str, crc: int, size: int, offset: int) -> bytes:
    head = _CENTRAL.pack(
        *(b"PK\x01\x02", _MADE_BY_UNIX, _VERSION, 0, 0, 0, _DATE, crc, size, size, len(name)),
        *(0, 0, 0, 0, _REGULAR_FILE, offset),
    )
    return head + name.encode("ascii")


def _end(size: int, offset: int) -> bytes:
    count = len(MEMBERS)
    return _END.pack(b"PK\x05\x06", 0, 0, count, count, size, offset, 0)


def _enough(found: bytes, size: int, where: str) -> None:
    if len(found) < size:
        raise BundleError(
            "BUNDLE_HASH",
            f"the file is cut short in {where}: {len(found)} of {size} bytes; copy it again",
        )


def _refuse(position: int, text: str) -> BundleError:
    return BundleError(
        "BUNDLE_ARCHIVE", f"at byte {position}: {text}; write it with `steadyhand bundle pack`"
    )


def _name_of(data: bytes, position: int) -> str:
    """The name found in a foreign header, escaped and cut for a message."""
    length = _LOCAL.unpack(data[position : position + _LOCAL.size])[9]
    start = position + _LOCAL.size
    return repr(data[start : start + min(length, 80)])[1:] if length else "no name"
