"""Certificates of a small site: make an authority, issue, take back, and see what runs out when."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from steadyhand.runtime import pki
from steadyhand.runtime.certificates import Facts, facts
from steadyhand.runtime.cli import AsJson
from steadyhand.runtime.exits import Exit
from steadyhand.runtime.health import printable
from steadyhand.runtime.terminal import named_file, show

app = typer.Typer(
    no_args_is_help=True,
    help="Certificates for OPC UA: a small authority of the site's own, or single ones.",
)
Folder = Annotated[Path, typer.Argument(help="Folder of the authority and its certificates.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there, for good.")]
Days = Annotated[float, typer.Option(min=0.001, max=36_500, help="Days until it expires.")]
Bits = Annotated[int, typer.Option(min=2048, max=4096, help="RSA key: 2048, 3072 or 4096 bits.")]


def register(root: typer.Typer) -> None:
    """Add `steadyhand pki …`."""
    root.add_typer(app, name="pki")


@app.command("init")
def init(
    folder: Folder,
    name: Annotated[str, typer.Option(help="Name of the site.")] = "site authority",
    days: Days = 3650,
    bits: Bits = 3072,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make the site's authority, an empty revocation list and folders of trust.

    Keep its key on a machine that runs no plant: steadyhand needs the certificate only.
    """
    with named_file(folder):
        made = pki.make_authority(folder, name, days, bits, force)
    text = (
        f"{made.certificate}\n{made.private_key}\n{folder / 'ca.crl'}\nSHA-256 {made.sha256}\n"
        f"next: steadyhand pki issue {folder} NAME --uri urn:... --use client|server"
    )
    show(_made(made), as_json, text)


@app.command("issue")
def issue(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="Name of the two files.", show_default=False)],
    uri: Annotated[str, typer.Option(help="Application URI, as the other side expects it.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address a server answers under; repeatable.")
    ] = None,
    use: Annotated[
        list[str] | None, typer.Option(help="client, server; repeatable. Default: client.")
    ] = None,
    days: Days = 825,
    bits: Bits = 2048,
    self_signed: Annotated[
        bool, typer.Option("--self-signed", help="Without an authority; trusted one by one.")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Make one application's certificate and key."""
    with named_file(folder):
        made = pki.issue(
            folder, name, uri, host or (), use or ("client",), days, bits, self_signed, force
        )
    whom = made.certificate if self_signed else folder / "ca_cert.der"
    text = (
        f"{made.certificate}\n{made.private_key}\nSHA-256 {made.sha256}\n"
        f"whoever shall trust it needs {whom}; the key stays where it is used"
    )
    show(_made(made), as_json, text)


@app.command("revoke")
def revoke(
    folder: Folder,
    certificate: Annotated[
        list[Path] | None, typer.Argument(help="Certificates to take back, for ever.")
    ] = None,
    days: Annotated[
        float, typer.Option(min=0.001, max=3650, help="Days until the list must be renewed.")
    ] = 365,
    as_json: AsJson = False,
) -> None:
    """Take certificates back; without any, sign the revocation list anew."""
    with named_file(folder):
        file = pki.revoke(folder, certificate or (), days)
    (found,) = facts(file)
    text = (
        f"{file}: {found.revoked} taken back, to be renewed by {found.not_after:%Y-%m-%d}\n"
        "copy it to whoever trusts the authority (link.security.revoked)"
    )
    show({"file": str(file), "revoked": found.revoked}, as_json, text)


@app.command("show")
def show_command(
    path: Annotated[Path, typer.Argument(help="Certificate, revocation list, or folder.")],
    as_json: AsJson = False,
) -> None:
    """Until when, for which URI, with which fingerprint. Exit 1 if one has expired."""
    now = datetime.now(UTC)
    found = facts(path)
    table = Table("state", "until", "what", "application", "hosts", "SHA-256", "file")
    for one in found:
        table.add_row(*map(_safe, _row(one, now)))
    data = [_data(one, now) for one in found]
    show(data, as_json, table if found else f"{path}: no certificates in it")
    if any(one.state(now) == "EXPIRED" for one in found):
        raise typer.Exit(Exit.FAILED)


def _safe(text: str) -> str:
    """What a certificate says is somebody else's text."""
    return printable(text, 200)


def _row(one: Facts, now: datetime) -> tuple[str, ...]:
    if one.fault:
        return one.state(now), "", "", "", "", "", one.file.name
    bits = f", RSA {one.bits}" if one.bits else f", {one.revoked} taken back"
    what = one.kind + bits
    name = ", ".join(one.uris) or one.subject
    until = f"{one.not_after:%Y-%m-%d %H:%M}Z"
    return one.state(now), until, what, name, ", ".join(one.hosts), one.sha256, one.file.name


def _data(one: Facts, now: datetime) -> dict[str, Any]:
    return {
        "file": str(one.file),
        "kind": one.kind,
        "state": one.state(now),
        "subject": one.subject,
        "uris": list(one.uris),
        "hosts": list(one.hosts),
        "sha256": one.sha256,
        "fault": one.fault,
        "not_before": one.not_before.isoformat(),
        "not_after": one.not_after.isoformat(),
        "days_left": round((one.not_after - now).total_seconds() / 86_400.0, 3),
        "bits": one.bits,
        "revoked": one.revoked,
    }


def _made(made: pki.Issued) -> dict[str, str]:
    return {
        "certificate": str(made.certificate),
        "private_key": str(made.private_key),
        "sha256": made.sha256,
    }
