"""Every bundle that must be refused, as one table: what was done to it → code, words.

After each refusal the version state on disk is, byte for byte, what it was before, and nothing
new lies beside the bundle. The numbers are those of the list of attacks and mistakes a signed
bundle has to withstand: signature, keys, dates, versions, mixing, plant, files, archive tricks,
expansion, races, manifest text, hostile signature files and slow or endless delivery.
"""

import json
import os
import stat
import struct
import unicodedata
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from steadyhand.controllers.errors import BundleError
from steadyhand.controllers.signals import Signal, SignalSet
from steadyhand.runtime.bundle.archive import MEMBERS, read_archive, read_stream, write_archive
from steadyhand.runtime.bundle.installed import InstalledState, make_rollback_token
from steadyhand.runtime.bundle.pack import pack_bundle
from steadyhand.runtime.bundle.signature import (
    TrustStore,
    generate_key,
    key_id,
    public_pem,
    read_private,
    sign,
)
from steadyhand.runtime.bundle.strict_json import canonical_json
from tests.support.bundles import NOW, PLANT, BundleKit
from tests.support.models import TanhPolicy, observation_signals, output_signals

DAY = timedelta(days=1)


@dataclass
class Attempt:
    """One try to load: the good bundle's bytes, and everything a case may change."""

    kit: BundleKit
    folder: Path
    data: bytes
    plant: object = PLANT
    now: datetime = NOW
    trust: TrustStore | None = None
    installed: InstalledState | None = None
    path: Path | None = None
    token: bytes | None = None

    @property
    def members(self) -> dict[str, bytes]:
        return read_archive(self.data)

    def put(self, **changes: bytes) -> None:
        """Exchange members by stem (`policy`, `manifest`, `sig` …), frame kept valid."""
        names = {"sig": "manifest.sig"} | {name.split(".")[0]: name for name in MEMBERS[2:]}
        names["manifest"] = "manifest.json"
        self.data = write_archive(
            self.members | {names[stem]: content for stem, content in changes.items()}
        )

    def sign_manifest(self, raw: bytes, key: Ed25519PrivateKey | None = None) -> None:
        self.put(manifest=raw, sig=sign(key or self.kit.key, raw))

    def edit_manifest(self, edit: Callable[[dict], object]) -> None:
        """Change a field and sign again with the right key: only its content is wrong now."""
        fields = json.loads(self.members["manifest.json"])
        edit(fields)
        self.sign_manifest(canonical_json(fields))

    def load(self) -> None:
        path = self.path or self.folder / "tried.shb"
        if self.path is None:
            path.write_bytes(self.data)
        self.kit.load(
            path,
            now=self.now,
            plant=self.plant,
            trust=self.trust or self.kit.trust,
            installed=self.installed,
            rollback_token=self.token,
        )


Case = Callable[[Attempt], object]


# -- 1-6: signature, keys, dates -------------------------------------------------------------------


def other_key(a: Attempt) -> None:
    key = Ed25519PrivateKey.generate()
    fields = json.loads(a.members["manifest.json"]) | {"key_id": key_id(key.public_key())}
    a.sign_manifest(canonical_json(fields), key)


def lie_about_key_id(a: Attempt) -> None:
    a.edit_manifest(lambda m: m.update(key_id="0" * 32))


def revoked_key(a: Attempt) -> None:
    a.trust = TrustStore(a.kit.trust.keys.values(), [key_id(a.kit.key.public_key())])


def key_for(purpose: str) -> Case:
    def case(a: Attempt) -> None:
        keys = [replace(key, purposes=frozenset([purpose])) for key in a.kit.trust.keys.values()]
        a.trust = TrustStore(keys)

    return case


def expired_key(a: Attempt) -> None:
    a.trust = TrustStore([replace(k, expires=NOW - DAY) for k in a.kit.trust.keys.values()])


def at(moment: datetime) -> Case:
    return lambda a: setattr(a, "now", moment)


# -- 7-9: versions and mixing ----------------------------------------------------------------------


def after(version: int, *, name: str = "newer.shb") -> Case:
    """Try version 3 where `version` already runs."""

    def case(a: Attempt) -> None:
        newer = a.kit.load(a.kit.pack(name, TanhPolicy(seed=5), version=version))
        a.installed = InstalledState(a.folder / "state")
        a.installed.record(newer.manifest, newer.manifest_sha256, NOW)

    return case


def with_token(**changes: object) -> Case:
    """Version 3 after version 4 with a rollback token that is wrong in one respect."""

    def case(a: Attempt) -> None:
        after(4)(a)
        keys = a.folder / "keys"
        keys.mkdir()
        purpose = changes.get("purpose", "rollback")
        private, _ = generate_key(keys, "shift", [str(purpose)])
        store = TrustStore.read(keys)
        a.trust = TrustStore([*a.kit.trust.keys.values(), *store.keys.values()])
        digest = sha256(a.members["manifest.json"]).hexdigest()
        a.token = make_rollback_token(
            read_private(private),
            str(changes.get("plant_id", PLANT.plant_id)),
            str(changes.get("digest", digest)),
            changes.get("not_after", NOW + DAY),
        )
        spoil = changes.get("spoil")
        if spoil is not None:
            a.token = spoil(a.token)

    return case


def mixed(part: str) -> Case:
    """A member of another, equally valid bundle."""

    def case(a: Attempt) -> None:
        other = read_archive(a.kit.pack("other.shb", TanhPolicy(seed=7), version=9).read_bytes())
        a.put(**{part: other[{"policy": "policy.onnx", "golden": "golden.json"}[part]]})

    return case


def mixed_signature(a: Attempt) -> None:
    other = read_archive(a.kit.pack("other.shb", TanhPolicy(seed=7), version=9).read_bytes())
    a.put(sig=other["manifest.sig"])


# -- 10-11: plant, signals, files ------------------------------------------------------------------


def plant_with(**changes: object) -> Case:
    return lambda a: setattr(a, "plant", replace(PLANT, **changes))


def signal_edit(side: str, index: int, **changes: object) -> Case:
    return lambda a: a.edit_manifest(lambda m: m[side][index].update(changes))


def swap_observations(a: Attempt) -> None:
    a.edit_manifest(lambda m: m["observations"].insert(0, m["observations"].pop()))


def drop_file(a: Attempt) -> None:
    a.edit_manifest(lambda m: m["files"].pop())


def drop_member(a: Attempt) -> None:
    kept = {name: content for name, content in a.members.items() if name != "evidence.json"}
    a.data = zipped(list(kept.items()))


def add_member(name: str) -> Case:
    return lambda a: setattr(a, "data", zipped([*a.members.items(), (name, b"x")]))


def one_byte(part: str) -> Case:
    def case(a: Attempt) -> None:
        name = {"policy": "policy.onnx", "trust": "trust.json"}[part]
        content = bytearray(a.members[name])
        content[len(content) // 2] ^= 1
        a.put(**{part: bytes(content)})

    return case


def longer_policy(a: Attempt) -> None:
    a.put(policy=a.members["policy.onnx"] + b"\0")


# -- 12-13: the archive ----------------------------------------------------------------------------


def zipped(
    entries: list[tuple[str, bytes]],
    edit: Callable[[zipfile.ZipInfo], None] | None = None,
    compression: int = zipfile.ZIP_STORED,
) -> bytes:
    """A zip as other tools write it, in our order and with our dates."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in entries:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, (stat.S_IFREG | 0o644) << 16
            info.compress_type = compression
            if edit is not None:
                edit(info)
            archive.writestr(info, content)
    return out.getvalue()


def renamed(old: str, new: str) -> Case:
    def case(a: Attempt) -> None:
        a.data = zipped([(new if n == old else n, c) for n, c in a.members.items()])

    return case


def mode(kind: int) -> Case:
    """An entry that other tools would unpack as a link, device or pipe."""

    def case(a: Attempt) -> None:
        def edit(info: zipfile.ZipInfo) -> None:
            if info.filename == "policy.onnx":
                info.external_attr = (kind | 0o644) << 16

        a.data = zipped(list(a.members.items()), edit)

    return case


def twice(a: Attempt) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        a.data = zipped([*a.members.items(), ("policy.onnx", b"other")])


def local_name_differs(a: Attempt) -> None:
    """The header before the content says PolicY.onnx, the directory policy.onnx."""
    place = a.data.index(b"policy.onnx", a.data.index(b"manifest.sig"))
    a.data = a.data[:place] + b"PolicY.onnx" + a.data[place + 11 :]


def central_name_differs(a: Attempt) -> None:
    place = a.data.index(b"policy.onnx", a.data.index(b"PK\x01\x02"))
    a.data = a.data[:place] + b"../../.onnx" + a.data[place + 11 :]


def central_size_differs(a: Attempt) -> None:
    place = a.data.index(b"PK\x01\x02") + 24
    size = struct.unpack_from("<I", a.data, place)[0]
    a.data = a.data[:place] + struct.pack("<I", size + 1) + a.data[place + 4 :]


def trailing(a: Attempt) -> None:
    a.data += b"\0"


def leading(a: Attempt) -> None:
    a.data = b"#!/bin/sh\n" + a.data


def comment(a: Attempt) -> None:
    a.data = a.data[:-2] + struct.pack("<H", 4) + b"note"


def nested(a: Attempt) -> None:
    a.data = zipped([("bundle.shb", a.data)])


def many_entries(a: Attempt) -> None:
    a.data = zipped([(f"f{i}", b"") for i in range(20_000)])


def deflated(a: Attempt) -> None:
    a.data = zipped(list(a.members.items()), compression=zipfile.ZIP_DEFLATED)


def deflate_bomb(a: Attempt) -> None:
    """1000:1, in place of the policy."""
    bomb = a.members | {"policy.onnx": bytes(20 * 2**20)}
    a.data = zipped(list(bomb.items()), compression=zipfile.ZIP_DEFLATED)


def sparse(a: Attempt) -> None:
    a.path = a.folder / "sparse.shb"
    with a.path.open("wb") as file:
        file.truncate(3 * 2**30)


def huge_declared_size(a: Attempt) -> None:
    """A member that says it has 4 GiB."""
    a.data = a.data[:18] + b"\xff\xff\xff\xff\xff\xff\xff\xff" + a.data[26:]


# -- the file itself -------------------------------------------------------------------------------


def symlink(a: Attempt) -> None:
    (a.folder / "real.shb").write_bytes(a.data)
    a.path = a.folder / "link.shb"
    a.path.symlink_to(a.folder / "real.shb")


def fifo(a: Attempt) -> None:
    a.path = a.folder / "pipe.shb"
    os.mkfifo(a.path)


def device(a: Attempt) -> None:
    a.path = Path("/dev/zero")


# -- 15: the manifest's text -----------------------------------------------------------------------


def manifest_text(edit: Callable[[bytes], bytes]) -> Case:
    """The text changed, then signed again with the right key."""
    return lambda a: a.sign_manifest(edit(a.members["manifest.json"]))


def reorder(raw: bytes) -> bytes:
    fields = json.loads(raw)
    return json.dumps(dict(reversed(fields.items())), indent=1).encode() + b"\n"


def manifest_edit(edit: Callable[[dict], object]) -> Case:
    return lambda a: a.edit_manifest(edit)


def version_text(text: bytes) -> Case:
    return manifest_text(lambda raw: raw.replace(b'"version": 3', b'"version": ' + text))


# -- 16: the signature file ------------------------------------------------------------------------


def signature(content: Callable[[Attempt], bytes]) -> Case:
    return lambda a: a.put(sig=content(a))


def one_bit_off(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


PEM_GARBAGE = b"-----BEGIN SIGNATURE-----\n" + b"QUJD" * 20 + b"\n-----END SIGNATURE-----\n"

TABLE: dict[str, tuple[Case, str, str]] = {
    # 1-6
    "1 no signature": (signature(lambda a: b""), "BUNDLE_SIG", "0 bytes"),
    "2 signature of other bytes": (
        signature(lambda a: sign(a.kit.key, b"other")), "BUNDLE_SIG", "not of these bytes"),
    "2 one bit of the signature": (
        signature(lambda a: one_bit_off(a.members["manifest.sig"])), "BUNDLE_SIG", "changed"),
    "2 one byte of the manifest": (
        lambda a: a.put(manifest=a.members["manifest.json"].replace(b'"care"', b'"cure"')),
        "BUNDLE_SIG", "not of these bytes"),
    "3 unknown key": (other_key, "BUNDLE_SIG", "unknown key"),
    "3 empty trust store": (
        lambda a: setattr(a, "trust", TrustStore([])), "BUNDLE_SIG", "trusted are: none"),
    "3 manifest names another key": (lie_about_key_id, "BUNDLE_SIG", "key_id=0000"),
    "4 revoked key": (revoked_key, "BUNDLE_SIG", "revoked"),
    "5 key of another purpose": (key_for("config"), "BUNDLE_SIG", "is for config, not for"),
    "5 key for rollbacks only": (key_for("rollback"), "BUNDLE_SIG", "not for controller"),
    "6 expired": (at(NOW + 365 * DAY), "BUNDLE_EXPIRED", "not_after=2027-05-22"),
    "6 not yet valid": (at(NOW - 11 * DAY), "BUNDLE_EXPIRED", "is its clock right?"),
    "6 clock reset to 1970": (at(datetime(1970, 1, 1, tzinfo=UTC)), "BUNDLE_EXPIRED", "1970-01-01"),
    "6 expired key": (expired_key, "BUNDLE_SIG", "expired at"),
    # 7-9
    "7 older version": (after(4), "BUNDLE_ROLLBACK", "version 4 already ran"),
    "7 token of a key for controllers": (
        with_token(purpose="controller"), "BUNDLE_SIG", "not for rollback"),
    "7 token for another plant": (with_token(plant_id="tank_2"), "BUNDLE_ROLLBACK", "tank_2"),
    "7 token for another bundle": (with_token(digest="0" * 64), "BUNDLE_ROLLBACK", "0000000000"),
    "7 token too old": (with_token(not_after=NOW - DAY), "BUNDLE_ROLLBACK", "token expired"),
    "7 token changed": (
        with_token(spoil=lambda t: t.replace(b"2026", b"2096")), "BUNDLE_SIG", "changed"),
    "7 token empty": (with_token(spoil=lambda t: b""), "BUNDLE_SIG", "0 bytes"),
    "8 same version, other content": (after(3), "BUNDLE_ROLLBACK", "other content"),
    "9 policy of another bundle": (mixed("policy"), "BUNDLE_HASH", "policy.onnx"),
    "9 golden vectors of another bundle": (mixed("golden"), "BUNDLE_HASH", "golden.json"),
    "9 signature of another bundle": (mixed_signature, "BUNDLE_SIG", "not of these bytes"),
    # 10-11 and every field of the contract with the plant
    "10 other plant": (plant_with(plant_id="tank_2"), "BUNDLE_PLANT", "this plant is 'tank_2'"),
    "10 other period": (plant_with(period_s=60.0), "BUNDLE_MANIFEST", "every 60 s"),
    "10 other order": (swap_observations, "BUNDLE_MANIFEST", "other order"),
    "10 other unit": (signal_edit("observations", 1, unit="W"), "BUNDLE_MANIFEST", "unit='W'"),
    "10 other name": (signal_edit("outputs", 0, name="valve"), "BUNDLE_MANIFEST", "['valve']"),
    "10 other sign": (
        signal_edit("outputs", 0, positive="charging"), "BUNDLE_MANIFEST", "turned round"),
    "10 wider output": (signal_edit("outputs", 0, high=450.5), "BUNDLE_MANIFEST", "only tighten"),
    "10 wider observation": (
        signal_edit("observations", 0, low=-101.0), "BUNDLE_MANIFEST", "only tighten"),
    "10 faster output": (
        signal_edit("outputs", 0, rate_per_s=7.5), "BUNDLE_MANIFEST", "rate_per_s=7.5"),
    "10 signal missing": (
        lambda a: a.edit_manifest(lambda m: m["observations"].pop()), "BUNDLE_MANIFEST", "missing"),
    "11 file not in the manifest": (drop_file, "BUNDLE_MANIFEST", "files"),
    "11 file missing": (drop_member, "BUNDLE_ARCHIVE", "evidence.json"),
    "11 file too many": (add_member("notes.txt"), "BUNDLE_ARCHIVE", "directory differs"),
    "11 pickle too many": (add_member("policy.pkl"), "BUNDLE_ARCHIVE", "directory differs"),
    "11 size differs": (longer_policy, "BUNDLE_HASH", "policy.onnx"),
    "11 one byte of the policy": (one_byte("policy"), "BUNDLE_HASH", "policy.onnx"),
    "11 one byte of the monitors": (one_byte("trust"), "BUNDLE_HASH", "trust.json"),
    # 12
    "12 parent folder": (renamed("trust.json", "../trust.js"), "BUNDLE_ARCHIVE", "../trust.js"),
    "12 absolute path": (renamed("policy.onnx", "/etc/passwd"), "BUNDLE_ARCHIVE", "/etc/passwd"),
    "12 other case": (renamed("policy.onnx", "Policy.onnx"), "BUNDLE_ARCHIVE", "Policy.onnx"),
    "12 other Unicode form": (
        renamed("policy.onnx", unicodedata.normalize("NFD", "pólicy.onnx")), "BUNDLE_ARCHIVE",
        "must be stored"),
    "12 NUL in the name": (
        lambda a: setattr(a, "data", a.data.replace(b"policy.onnx", b"policy\0onnx")),
        "BUNDLE_ARCHIVE", "must be stored"),
    "12 symbolic link": (mode(stat.S_IFLNK), "BUNDLE_ARCHIVE", "directory"),
    "12 device": (mode(stat.S_IFCHR), "BUNDLE_ARCHIVE", "directory"),
    "12 FIFO": (mode(stat.S_IFIFO), "BUNDLE_ARCHIVE", "directory"),
    "12 name twice": (twice, "BUNDLE_ARCHIVE", "directory"),
    "12 local header differs": (local_name_differs, "BUNDLE_ARCHIVE", "PolicY.onnx"),
    "12 central name differs": (central_name_differs, "BUNDLE_ARCHIVE", "directory"),
    "12 central size differs": (central_size_differs, "BUNDLE_ARCHIVE", "directory"),
    "12 bytes behind": (trailing, "BUNDLE_ARCHIVE", "bytes follow"),
    "12 bytes in front": (leading, "BUNDLE_ARCHIVE", "at byte 0"),
    "12 comment": (comment, "BUNDLE_ARCHIVE", "directory"),
    "12 archive in an archive": (nested, "BUNDLE_ARCHIVE", "bundle.shb"),
    "12 20 000 entries": (many_entries, "BUNDLE_ARCHIVE", "f0"),
    "12 not an archive": (
        lambda a: setattr(a, "data", b"\x80\x04pickle" * 100), "BUNDLE_ARCHIVE", "at byte 0"),
    "12 path is a link": (symlink, "BUNDLE_FILE", "not a link"),
    "12 path is a pipe": (fifo, "BUNDLE_FILE", "not a regular file"),
    "12 path is a device": (device, "BUNDLE_FILE", "not a regular file"),
    "12 no such file": (
        lambda a: setattr(a, "path", a.folder / "none.shb"), "BUNDLE_FILE", "No such file"),
    # 13
    "13 compressed": (deflated, "BUNDLE_ARCHIVE", "must be stored"),
    "13 expands 1000 to 1": (deflate_bomb, "BUNDLE_ARCHIVE", "must be stored"),
    "13 3 GB of nothing": (sparse, "BUNDLE_LIMIT", "at most"),
    "13 declares 4 GB": (huge_declared_size, "BUNDLE_HASH", "cut short"),
    # 15
    "15 unknown key": (manifest_edit(lambda m: m.update(extra=1)), "BUNDLE_MANIFEST", "extra"),
    "15 missing key": (manifest_edit(lambda m: m.pop("period_s")), "BUNDLE_MANIFEST", "period_s"),
    "15 doubled key": (version_text(b'3,\n "version": 4'), "BUNDLE_MANIFEST", "occurs twice"),
    "15 NaN": (
        manifest_text(lambda raw: raw.replace(b'"tolerance": 0.0001', b'"tolerance": NaN')),
        "BUNDLE_MANIFEST", "NaN is not a number"),
    "15 infinite range": (
        manifest_text(lambda raw: raw.replace(b'"high": 450.0', b'"high": Infinity')),
        "BUNDLE_MANIFEST", "Infinity"),
    "15 number beyond float": (
        manifest_text(lambda raw: raw.replace(b'"high": 450.0', b'"high": 1e999')),
        "BUNDLE_MANIFEST", "too large"),
    "15 range turned round": (
        signal_edit("outputs", 0, low=450.0, high=-400.0), "BUNDLE_MANIFEST", "not below"),
    "15 re-ordered": (manifest_text(reorder), "BUNDLE_MANIFEST", "canonical"),
    "15 other spacing": (
        manifest_text(lambda raw: raw.replace(b'": ', b'":  ')), "BUNDLE_MANIFEST", "canonical"),
    "15 CRLF": (
        manifest_text(lambda raw: raw.replace(b"\n", b"\r\n")), "BUNDLE_MANIFEST", "carriage"),
    "15 byte order mark": (
        manifest_text(lambda raw: b"\xef\xbb\xbf" + raw), "BUNDLE_MANIFEST", "byte order mark"),
    "15 not UTF-8": (
        manifest_text(lambda raw: raw.replace(b'"care"', b'"c\xffre"')), "BUNDLE_MANIFEST",
        "not JSON"),
    "15 deep nesting": (
        manifest_text(lambda raw: b"[" * 200_000 + b"]" * 200_000), "BUNDLE_MANIFEST", "not JSON"),
    "15 huge": (manifest_text(lambda raw: b" " * (2**20 + 1)), "BUNDLE_LIMIT", "manifest.json"),
    "15 empty": (manifest_text(lambda raw: b""), "BUNDLE_MANIFEST", "not JSON"),
    "15 version as text": (version_text(b'"3"'), "BUNDLE_MANIFEST", "version='3'"),
    "15 version as truth value": (version_text(b"true"), "BUNDLE_MANIFEST", "version=True"),
    "15 version zero": (version_text(b"0"), "BUNDLE_MANIFEST", "version=0"),
    "15 version of 5000 digits": (version_text(b"9" * 5000), "BUNDLE_MANIFEST", "not JSON"),
    "15 other schema": (
        manifest_edit(lambda m: m.update(schema_version=2)), "BUNDLE_MANIFEST", "schema_version=2"),
    "15 other purpose": (
        manifest_edit(lambda m: m.update(purpose="config")), "BUNDLE_MANIFEST", "purpose='config'"),
    "15 recurrent state": (
        manifest_edit(lambda m: m.update(recurrent_state=["h"])), "BUNDLE_MANIFEST",
        "recurrent_state"),
    "15 relative action": (
        manifest_edit(lambda m: m.update(action_semantics="change")), "BUNDLE_MANIFEST",
        "action_semantics='change'"),
    "15 signal named twice": (
        signal_edit("observations", 1, name="y0"), "BUNDLE_MANIFEST", "'y0' occurs twice"),
    "15 envelope beyond the range": (
        manifest_edit(lambda m: m["envelope"]["y0"].update(high=100.5)), "BUNDLE_MANIFEST",
        "envelope of y0"),
    "15 envelope of nothing": (
        manifest_edit(lambda m: m["envelope"].update(z={"low": 0.0, "high": 1.0})),
        "BUNDLE_MANIFEST", "'z'"),
    "15 ends before it begins": (
        manifest_edit(lambda m: m.update(not_after="2020-01-01T00:00:00Z")), "BUNDLE_MANIFEST",
        "not before"),
    "15 local time": (
        manifest_edit(lambda m: m.update(created="2026-06-01T12:00:00+02:00")), "BUNDLE_MANIFEST",
        "must be UTC"),
    "15 path as a file name": (
        manifest_edit(lambda m: m["files"][0].update(name="../policy.onnx")), "BUNDLE_MANIFEST",
        "files.0.name='../policy.onnx'"),
    # 16
    "16 huge signature": (signature(lambda a: bytes(2**20)), "BUNDLE_SIG", "1048576 bytes"),
    "16 garbage in PEM": (signature(lambda a: PEM_GARBAGE), "BUNDLE_SIG", "must be the 80 bytes"),
    "16 zeros": (signature(lambda a: bytes(80)), "BUNDLE_SIG", "unknown key 0000"),
    # damage on the way
    "D1 empty": (lambda a: setattr(a, "data", b""), "BUNDLE_HASH", "cut short"),
    "D1 half": (
        lambda a: setattr(a, "data", a.data[: len(a.data) // 2]), "BUNDLE_HASH", "cut short"),
    "D1 last byte": (lambda a: setattr(a, "data", a.data[:-1]), "BUNDLE_HASH", "cut short"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_refused(name, kit, good, tmp_path):
    case, code, words = TABLE[name]
    attempt = Attempt(kit, tmp_path, good.read_bytes())
    case(attempt)
    if attempt.path is None:
        (tmp_path / "tried.shb").write_bytes(attempt.data)
    before = snapshot(tmp_path)
    with pytest.raises(BundleError) as caught:
        attempt.load()
    assert caught.value.code == code, str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert snapshot(tmp_path) == before


def snapshot(folder: Path) -> dict[str, object]:
    """Names, kinds and contents of everything below `folder`."""
    return {
        str(path.relative_to(folder)): (
            path.read_bytes()
            if path.is_file() and path.stat().st_size < 2**30
            else path.lstat().st_mode
        )
        for path in sorted(folder.rglob("*"))
    }


def test_untouched_attempt_is_accepted(kit, good, tmp_path):
    """The table proves nothing if the harness itself spoils bundles."""
    attempt = Attempt(kit, tmp_path, good.read_bytes())
    attempt.put()
    attempt.edit_manifest(lambda m: m.update(name="care"))
    assert attempt.data == good.read_bytes()
    attempt.load()


def test_zip_helper_writes_what_the_reader_accepts(kit, good, tmp_path):
    """Each archive trick differs from a good archive in the trick alone."""
    attempt = Attempt(kit, tmp_path, good.read_bytes())
    attempt.data = zipped(list(attempt.members.items()))
    assert attempt.data == good.read_bytes()


# -- 6: the grace rule -----------------------------------------------------------------------------


def installed_at(kit: BundleKit, path: Path, folder: Path, moment: datetime) -> InstalledState:
    bundle = kit.load(path)
    state = InstalledState(folder / "state")
    state.record(bundle.manifest, bundle.manifest_sha256, moment)
    return state


def test_expired_bundle_that_already_ran_here_starts_again_for_30_days(kit, good, tmp_path):
    state = installed_at(kit, good, tmp_path, NOW)
    end = NOW - 10 * DAY + 365 * DAY
    assert kit.load(good, now=end, installed=state).warnings == ()
    (warning,) = kit.load(good, now=end + 30 * DAY, installed=state).warnings
    assert "expired" in warning
    with pytest.raises(BundleError, match="BUNDLE_EXPIRED"):
        kit.load(good, now=end + 30 * DAY + timedelta(seconds=1), installed=state)


def test_clock_set_back_does_not_undo_an_expiry(kit, good, tmp_path):
    end = NOW - 10 * DAY + 365 * DAY
    state = installed_at(kit, good, tmp_path, end + 31 * DAY)
    with pytest.raises(BundleError, match="BUNDLE_EXPIRED"):
        kit.load(good, now=NOW, installed=state)


def test_clock_lost_by_a_flat_battery_does_not_stop_an_installed_bundle(kit, good, tmp_path):
    state = installed_at(kit, good, tmp_path, NOW)
    assert kit.load(good, now=datetime(1970, 1, 1, tzinfo=UTC), installed=state).label == "care v3"


# -- 7: the allowed ways back ----------------------------------------------------------------------


def test_rollback_with_a_signed_token_or_the_operators_word(kit, good, tmp_path):
    attempt = Attempt(kit, tmp_path, good.read_bytes())
    with_token()(attempt)
    attempt.load()
    bundle = kit.load(good, installed=attempt.installed, allow_rollback=True)
    attempt.installed.record(bundle.manifest, bundle.manifest_sha256, NOW)
    # It runs here now, so a restart needs no token; yet version 4 stays the newest that ever ran.
    kit.load(good, installed=attempt.installed)
    entry = attempt.installed.get(PLANT.plant_id)
    assert (entry.version, entry.highest_version) == (3, 4)
    with pytest.raises(BundleError, match="BUNDLE_ROLLBACK"):
        kit.load(kit.pack("two.shb", version=2), installed=attempt.installed)


# -- tightening is allowed -------------------------------------------------------------------------


def test_tighter_bundle_tightens_the_plants_limits(kit, good, tmp_path):
    attempt = Attempt(kit, tmp_path, good.read_bytes())
    attempt.edit_manifest(lambda m: m["outputs"][0].update(low=-390.0, rate_per_s=2.0))
    attempt.path = tmp_path / "tight.shb"
    attempt.path.write_bytes(attempt.data)
    bundle = kit.load(attempt.path)
    (signal,) = bundle.outputs.signals
    assert (signal.low, signal.high, signal.rate_per_s) == (-390.0, 450.0, 2.0)


# -- 14: replaced between check and load -----------------------------------------------------------


def test_file_replaced_while_it_is_loaded_is_wholly_old_or_new(kit, good, monkeypatch, tmp_path):
    """At each of 1 000 reads the name is pointed to the other bundle before, or after, the open."""
    from steadyhand.runtime.bundle import archive, load

    other = kit.pack("race_other.shb", TanhPolicy(seed=3), version=8)
    files = {3: good.read_bytes(), 8: other.read_bytes()}
    path = tmp_path / "raced.shb"
    path.write_bytes(files[3])
    tries = iter(range(10_000))

    def exchange() -> None:
        spare = tmp_path / "spare"
        spare.write_bytes(files[3 if next(tries) % 2 else 8])
        spare.replace(path)

    real_open, real_read = os.open, os.read

    def open_then_exchange(*args: object, **kwargs: object) -> int:
        fd = real_open(*args, **kwargs)
        exchange()
        return fd

    def read_then_exchange(fd: int, size: int) -> bytes:
        data = real_read(fd, min(size, 1000))
        exchange()
        return data

    monkeypatch.setattr(archive.os, "open", open_then_exchange)
    monkeypatch.setattr(archive.os, "read", read_then_exchange)
    seen = set()
    while next(tries) < 1000:
        data = load.read_file(path)
        verified = load.verify_bundle(data, kit.trust, NOW)
        assert data == files[verified.manifest.version]
        seen.add(verified.manifest.version)
    assert seen == {3, 8}


def test_file_that_changes_in_place_while_it_is_read_is_refused(kit, good, tmp_path, monkeypatch):
    from steadyhand.runtime.bundle import archive

    path = tmp_path / "growing.shb"
    path.write_bytes(good.read_bytes())
    real_read = os.read

    def read_then_append(fd: int, size: int) -> bytes:
        data = real_read(fd, size)
        if data and path.stat().st_size < good.stat().st_size + 50:
            with path.open("ab") as file:
                file.write(b"x")
        return data

    monkeypatch.setattr(archive.os, "read", read_then_append)
    with pytest.raises(BundleError, match="BUNDLE_ARCHIVE"):
        kit.load(path)


# -- 16: slow and endless delivery -----------------------------------------------------------------


def test_slow_stream_is_cut_off():
    now = [0.0]

    def drip(size: int) -> bytes:
        now[0] += 1.0
        return b"x"

    with pytest.raises(BundleError, match=r"BUNDLE_LIMIT.* 31 bytes in 30 s"):
        read_stream(drip, "drip", clock=lambda: now[0])


def test_endless_stream_is_cut_off():
    served = [0]

    def flood(size: int) -> bytes:
        served[0] += size
        return bytes(size)

    with pytest.raises(BundleError, match=r"BUNDLE_LIMIT.*more than 5000000 bytes"):
        read_stream(flood, "flood", max_bytes=5_000_000)
    assert served[0] <= 5_000_001


# -- key rotation ----------------------------------------------------------------------------------


def test_change_from_an_old_key_to_a_new_one_without_a_gap(kit, good, tmp_path):
    from steadyhand.runtime.bundle.pack import sign_bundle

    private, _ = generate_key(tmp_path, "fresh", ["controller"])
    new = read_private(private)
    sign_bundle(good, tmp_path / "again.shb", new)
    (tmp_path / "release.pub.pem").write_bytes(public_pem(kit.key.public_key(), ["controller"]))
    both = TrustStore.read(tmp_path)
    assert kit.load(good, trust=both).signer == "release"
    assert kit.load(tmp_path / "again.shb", trust=both).signer == "fresh"
    (tmp_path / "revoked.txt").write_text(f"# leaked\n{key_id(kit.key.public_key())}\n")
    after_change = TrustStore.read(tmp_path)
    with pytest.raises(BundleError, match="revoked"):
        kit.load(good, trust=after_change)
    assert kit.load(tmp_path / "again.shb", trust=after_change).signer == "fresh"


# -- any byte --------------------------------------------------------------------------------------


def test_any_single_bit_anywhere_is_noticed_before_the_graph_is_loaded(kit, good, monkeypatch):
    """A third of the flips in a small graph would still load and run."""
    from steadyhand.runtime.bundle.load import verify_bundle

    data, trust = good.read_bytes(), kit.trust
    codes = set()
    for position in range(0, len(data), 11):
        spoiled = bytearray(data)
        spoiled[position] ^= 1 << (position % 8)
        with pytest.raises(BundleError) as caught:
            verify_bundle(bytes(spoiled), trust, NOW)
        codes.add(caught.value.code)
    assert codes == {"BUNDLE_ARCHIVE", "BUNDLE_HASH", "BUNDLE_SIG"}


def test_any_truncation_is_noticed(kit, good):
    from steadyhand.runtime.bundle.load import verify_bundle

    data, trust = good.read_bytes(), kit.trust
    for end in range(0, len(data), 37):
        with pytest.raises(BundleError) as caught:
            verify_bundle(data[:end], trust, NOW)
        assert caught.value.code == "BUNDLE_HASH"


# -- what the graph may not be ---------------------------------------------------------------------


def test_packing_refuses_what_loading_would(kit, tmp_path):
    other = SignalSet((*observation_signals().signals, Signal("extra", "kW", 0.0, 1.0)))
    maker = TanhPolicy()
    with pytest.raises(BundleError, match="BUNDLE_GOLDEN") as caught:
        pack_bundle(
            tmp_path / "no.shb",
            kit.key,
            replace(PLANT, observations=other, outputs=output_signals()),
            name="care",
            version=1,
            model=maker.model(),
            golden=maker.golden(),
            trust={},
            evidence={},
            provenance={},
        )
    assert "observation" in str(caught.value)
    assert not (tmp_path / "no.shb").exists()
