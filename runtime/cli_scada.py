"""Who may come in over OPC UA: our certificate, users with roles, client applications."""

import getpass
import hashlib
import shutil
import socket
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from steadyhand.adapters.opcua.trust_files import UNPARSABLE
from steadyhand.controllers.errors import ConfigError, FileError
from steadyhand.runtime.cli import AsJson, ConfigFile
from steadyhand.runtime.config import Loaded, load_config, require
from steadyhand.runtime.config_doors import Scada
from steadyhand.runtime.health import printable
from steadyhand.runtime.scada.people import (
    NAME,
    ROLES,
    Person,
    certificate_proof,
    load_certificate,
    password_proof,
    read_people,
    write_people,
)
from steadyhand.runtime.terminal import named_file, show

app = typer.Typer(no_args_is_help=True, help="The OPC UA server for SCADA: who may come in.")
UserName = Annotated[str, typer.Argument(help="Name of the user.", show_default=False)]


def register(root: typer.Typer) -> None:
    """Add `steadyhand scada …`."""
    root.add_typer(app, name="scada")


def _section(config: Path) -> tuple[Loaded, Scada]:
    """The configuration's section.

    Raises:
        ConfigError: there is none, or it is the insecure one, which has no files.
    """
    loaded = require(load_config(config), config)
    section = loaded.config.scada
    if section is None or section.insecure_no_encryption is not None:
        raise ConfigError(f"{config}: no scada section with certificate, trusted and users_file")
    return loaded, section


@app.command("certificate")
def certificate(
    config: ConfigFile,
    host: Annotated[
        list[str] | None, typer.Option(help="Further name or address clients use; repeatable.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until it expires.")] = 825,
    as_json: AsJson = False,
) -> None:
    """Make our certificate and key where the configuration names them, and the folder of trust.

    What is there stays: move it away to make a new one.
    """
    from cryptography.x509.oid import ExtendedKeyUsageOID

    from steadyhand.adapters.opcua.application_certificate import make_certificate

    loaded, section = _section(config)
    made, key = loaded.path(section.certificate or ""), loaded.path(section.private_key or "")
    trusted = loaded.path(section.trusted or "")
    for path in (made, key):
        if path.exists():
            raise FileError(f"{path}: is there already; move it away to make a new one")
    uri = f"urn:{socket.gethostname()}:steadyhand:{loaded.config.name}"
    names = sorted({"localhost", "127.0.0.1", socket.gethostname(), *(host or ())})
    for folder in (made.parent, key.parent, trusted):
        with named_file(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with named_file(made):
        der = make_certificate(made, key, uri, names, ExtendedKeyUsageOID.SERVER_AUTH, float(days))
    data = {"uri": uri, "hosts": names, "sha256": hashlib.sha256(der).hexdigest()}
    text = (
        f"{made}\n{key}\nSHA-256 {data['sha256']}\n"
        f"give {made.name} to the SCADA clients; put their certificates into {trusted}"
    )
    show(data, as_json, text)


@app.command("user")
def user(
    config: ConfigFile,
    name: UserName,
    role: Annotated[
        Literal["viewer", "operator", "engineer"], typer.Option(help="What they may do.")
    ] = "viewer",
    certificate_file: Annotated[
        Path | None,
        typer.Option("--certificate", help="They log in with this certificate, not a password."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Let nobody in by this name.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a person in, change their role or password, or take them out. Holds at once.

    The password is asked for, or read from standard input, one line.
    """
    loaded, section = _section(config)
    file = loaded.path(section.users_file or "")
    people = read_people(file) if file.exists() else {}
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no user name: letters, digits and . _ @ -, at most 64")
    if remove:
        if people.pop(name, None) is None:
            raise ConfigError(f"no user {name!r} in {file}; there are: {', '.join(people) or '-'}")
        done = f"{name} is not let in any more"
    else:
        if certificate_file is not None:
            from cryptography.hazmat.primitives.serialization import Encoding

            der = load_certificate(certificate_file).public_bytes(Encoding.DER)
            proof = certificate_proof(der)
        else:
            proof = password_proof(_password(name))
        people[name] = Person(name, ROLES[role], proof)
        done = f"{name} is let in as {role}"
    with named_file(file):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_people(file, people)
    show({"name": name, "role": None if remove else role}, as_json, done)


def _password(name: str) -> str:
    """From the terminal, twice; or one line from a pipe.

    Raises:
        ConfigError: the two differ.
    """
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    first = getpass.getpass(f"password of {name}: ")
    if getpass.getpass("again: ") != first:
        raise ConfigError("the two differ; nothing was changed")
    return first


@app.command("clients")
def clients(config: ConfigFile, as_json: AsJson = False) -> None:
    """Client applications that are let in, and those that were refused, with fingerprints."""
    loaded, section = _section(config)
    trusted = loaded.path(section.trusted or "")
    table = Table("", "SHA-256", "valid until", "application", "file")
    data: list[dict[str, Any]] = []
    for word, folder in (("trusted", trusted), ("refused", trusted.parent / "rejected")):
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            if path.suffix not in {".der", ".crt", ".cer", ".pem"}:
                continue
            entry = {"state": word, "file": str(path), **_facts_or_fault(path)}
            data.append(entry)
            table.add_row(word, entry["sha256"], entry["until"], entry["uri"], path.name)
    show(data, as_json, table)


@app.command("trust")
def trust(
    config: ConfigFile,
    client: Annotated[str, typer.Argument(help="Certificate file, or SHA-256 of a refused one.")],
    as_json: AsJson = False,
) -> None:
    """Let a client application in. Compare the fingerprint with the one it shows first."""
    loaded, section = _section(config)
    trusted = loaded.path(section.trusted or "")
    refused = trusted.parent / "rejected" / f"{client.replace(':', '').lower()}.der"
    is_print = len(refused.stem) == 64 and refused.stem.isalnum()
    file = refused if is_print else Path(client)
    facts = _facts(file)
    target = trusted / f"{facts['sha256'][:16]}{file.suffix}"
    with named_file(target):
        trusted.mkdir(mode=0o700, parents=True, exist_ok=True)
        if file == refused:
            file.replace(target)
        else:
            shutil.copyfile(file, target)
    text = f"{facts['uri'] or 'a client'} is let in: SHA-256 {facts['sha256']}"
    show({"file": str(target), **facts}, as_json, text)


def _facts_or_fault(path: Path) -> dict[str, str]:
    """What a file says, or why it says nothing: one bad file never hides the others."""
    try:
        return _facts(path)
    except ConfigError as error:
        why = printable(str(error).removeprefix(f"{path}: "), 128)
        return {"sha256": "", "until": "", "uri": f"unreadable: {why}"}


def _facts(path: Path) -> dict[str, str]:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    found = load_certificate(path)
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    except UNPARSABLE as error:
        raise ConfigError(f"{path}: is a malformed certificate ({error})") from None
    return {
        "sha256": hashlib.sha256(found.public_bytes(Encoding.DER)).hexdigest(),
        "until": f"{found.not_valid_after_utc:%Y-%m-%d}",
        "uri": printable(uris[0], 128) if uris else "",
    }
