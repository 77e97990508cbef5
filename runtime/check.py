"""Pre-flight: everything a configuration points to, looked at before anything is driven.

`steadyhand check` and `steadyhand run` ask the same function. Every problem is named at once.
Nothing is left behind and no connection is opened. What another process holds now is no problem of
the configuration: the journal's lock is found by the start itself, a port is a warning
(`taken_ports.py`).
"""

import grp
import os
import pwd
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import lru_cache
from math import isclose
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from steadyhand.adapters.input_file import CREDENTIALS, read_secret, read_word
from steadyhand.adapters.opcua.trust_files import (
    LISTS,
    UNPARSABLE,
    files_of,
    is_signed,
    load_private_key,
    read_certificates,
    read_list,
)
from steadyhand.controllers.catalogue import plant_kind
from steadyhand.controllers.errors import (
    BundleError,
    ConfigError,
    LinkError,
    ModelError,
    SafetyError,
    SteadyhandError,
)
from steadyhand.controllers.heuristics.transfer import Transfer
from steadyhand.controllers.signals import SignalSet
from steadyhand.runtime.admission import admit, child_limits, open_bundle
from steadyhand.runtime.assemble import (
    journal_signer,
    make_gate,
    make_heuristic,
    make_limits,
    make_modes,
    make_plant,
    site_parameters,
    tightened,
)
from steadyhand.runtime.assemble_opcua import opcua_settings, opcua_tags
from steadyhand.runtime.child import examine
from steadyhand.runtime.config import CREDENTIALS_FOLDER, Loaded, load_config
from steadyhand.runtime.config_link import OpcUaLink
from steadyhand.runtime.disk_trouble import disk_trouble
from steadyhand.runtime.folders import folder_fault
from steadyhand.runtime.go_live import GoLive
from steadyhand.runtime.kept import KEPT_FILE, of_another_plant
from steadyhand.runtime.operator_socket import socket_fault
from steadyhand.runtime.panel.access import read_people
from steadyhand.runtime.quantity import magnitude, same_dimension
from steadyhand.runtime.scada.people import TrustFolder
from steadyhand.runtime.scada.people import read_people as read_users
from steadyhand.runtime.state_folder import kept_bundle, state_folder
from steadyhand.runtime.yaml_source import Path as FieldPath
from steadyhand.runtime.yaml_source import Problem


def check(file: Path, bundle: bool = True) -> tuple[Loaded | None, list[Problem]]:
    """Look at the configuration `file` and at everything it points to.

    Args:
        file: the configuration.
        bundle: False leaves the bundle to the caller: a start verifies and tries it itself.

    Returns:
        the configuration when it could be read, and every problem found.
    """
    loaded = load_config(file)
    if not isinstance(loaded, Loaded):
        return None, loaded
    problems = [*_plant(loaded), *_link_files(loaded), *_places(loaded), *_people(loaded)]
    problems += [*_panel(loaded), *_scada(loaded)]
    if not problems:
        problems += _assembly(loaded)
    if bundle:
        problems += _bundle(loaded, problems)
    return loaded, sorted(problems, key=lambda problem: (problem.line, problem.field))


def _problem(loaded: Loaded, path: FieldPath, message: str, code: str) -> Problem:
    dotted = ".".join(str(part) for part in path)
    return Problem(loaded.source.line(path), dotted, message, code)


def _plant(loaded: Loaded) -> Iterator[Problem]:
    """Plant type, its numbers, its signals and the heuristic."""
    config = loaded.config
    try:
        kind = plant_kind(config.plant.id)
    except ConfigError as error:
        yield _problem(loaded, ("plant", "id"), str(error), "CFG_PLANT")
        return
    wrong = []
    for name, text in config.plant.parameters.items():
        try:
            site_parameters(kind, {name: text})
        except ConfigError as error:
            wrong.append((name, str(error)))
    try:
        plant = kind.plant(site_parameters(kind, config.plant.parameters))
    except ConfigError as error:
        for name, text in wrong or [("", str(error))]:
            path = ("plant", "parameters", name) if name else ("plant", "parameters")
            yield _problem(loaded, path, text, "CFG_PARAMETER")
        return
    if config.period != plant.period_s:
        text = f"{config.period:g} s; the plant definition is made for {plant.period_s:g} s"
        yield _problem(loaded, ("period",), text, "CFG_TIMING")
    if config.fallback.heuristic not in kind.heuristics:
        choices = ", ".join(kind.heuristics)
        text = f"no heuristic {config.fallback.heuristic!r}; there are: {choices}"
        yield _problem(loaded, ("fallback", "heuristic"), text, "CFG_HEURISTIC")
    for name, bounds in config.safety.limits.items():
        try:
            tightened(plant.outputs, {name: bounds})
        except ConfigError as error:
            yield _problem(loaded, ("safety", "limits", name), str(error), "CFG_BOUNDS")
    if isinstance(config.link, OpcUaLink):
        signals = {name: (tag.unit, tag.scale, True) for name, tag in config.link.signals.items()}
        outputs = {
            name: (tag.unit, tag.scale, tag.whole) for name, tag in config.link.outputs.items()
        }
        yield from _names(loaded, "signals", plant.observations, signals)
        yield from _names(loaded, "outputs", plant.outputs, outputs)
        reserved = [
            *_reserved(loaded, "signals", "observation", plant.observations),
            *_reserved(loaded, "outputs", "output", plant.outputs),
        ]
        yield from reserved
        try:
            opcua_tags(make_plant(loaded), config.link)
        except ConfigError as error:
            named = (set(signals), set(outputs))
            if not reserved and named == (set(plant.observations.names), set(plant.outputs.names)):
                yield _problem(loaded, ("link",), str(error), "CFG_ADDRESS")


def _reserved(loaded: Loaded, section: str, label: str, wanted: SignalSet) -> Iterator[Problem]:
    """Signals of the plant that are called like a node of the handshake."""
    from steadyhand.adapters.opcua.tags import refuse_reserved

    for name in wanted.names:
        try:
            refuse_reserved(name, label)
        except ConfigError as error:
            yield _problem(loaded, ("link", section, name), str(error), "CFG_DUPTAG")


def _names(
    loaded: Loaded,
    section: str,
    wanted: SignalSet,
    given: dict[str, tuple[str | None, float, bool]],
) -> Iterator[Problem]:
    """Every signal of the plant exactly once, in a unit that means the same."""
    for name in wanted.names:
        if name not in given:
            text = f"the plant needs {name} [{wanted.signals[wanted.index(name)].unit}]; add it"
            yield _problem(loaded, ("link", section, name), text, "CFG_MISSING")
    for name, (unit, scale, scalable) in given.items():
        path: FieldPath = ("link", section, name)
        if name not in wanted.names:
            text = f"the plant has no {name!r}; it has: {', '.join(wanted.names)}"
            yield _problem(loaded, path, text, "CFG_UNKNOWN")
            continue
        needed = wanted.signals[wanted.index(name)].unit
        why = _unit_fault(unit, needed, scale, scalable) if unit is not None else ""
        if why:
            yield _problem(loaded, (*path, "unit"), f"{unit!r}: {why}", "CFG_UNIT")


def _unit_fault(unit: str, needed: str, scale: float, scalable: bool) -> str:
    """Why a number in `unit` times `scale` is none in `needed`; empty when it is."""
    if unit == needed:
        return ""  # a number without a unit on the server may be scaled to any
    if not same_dimension(unit, needed):
        return f"that is another dimension than {needed}"
    one = magnitude(f"1 {unit}", needed)
    proportional = isclose(magnitude(f"2 {unit}", needed), 2.0 * one)
    if not (scalable and proportional):
        return f"the server must deliver {needed}; change the tag there"
    return "" if isclose(scale, one) else f"scale has to be {one:g} to make it {needed}"


def _link_files(loaded: Loaded) -> Iterator[Problem]:
    """Certificates and secrets of an OPC UA link."""
    if not isinstance(loaded.config.link, OpcUaLink):
        return
    security = loaded.config.link.security
    where: FieldPath = ("link", "security")
    files: list[tuple[FieldPath, str | None, Callable[[Path], str | None]]] = [
        ((*where, "certificate"), security.certificate, _own_certificate_fault),
        ((*where, "private_key"), security.private_key, _key_fault),
        ((*where, "password_file"), security.password_file, _word_fault),
    ]
    files += [
        ((*where, "trusted", i), name, _trusted_fault) for i, name in enumerate(security.trusted)
    ]
    files += [
        (
            (*where, "revoked", i),
            name,
            lambda place: _revoked_fault(place, [loaded.path(one) for one in security.trusted]),
        )
        for i, name in enumerate(security.revoked)
    ]
    yield from _files(loaded, where, files, security.certificate, security.private_key)


def _scada(loaded: Loaded) -> Iterator[Problem]:
    """Certificates and users of our own OPC UA server."""
    section = loaded.config.scada
    if section is None or section.insecure_no_encryption is not None:
        return
    where: FieldPath = ("scada",)
    files: list[tuple[FieldPath, str | None, Callable[[Path], str | None]]] = [
        ((*where, "certificate"), section.certificate, _own_certificate_fault),
        ((*where, "private_key"), section.private_key, _key_fault),
        ((*where, "trusted"), section.trusted, _trust_fault),
        ((*where, "users_file"), section.users_file, _users_fault),
    ]
    yield from _files(loaded, where, files, section.certificate, section.private_key)


def _trust_fault(folder: Path) -> str | None:
    if not folder.is_dir():
        return "no folder; put the certificates of the SCADA clients there"
    try:
        TrustFolder(folder)
    except ConfigError as error:
        return f"in it, {error}"
    return None


def _users_fault(file: Path) -> str | None:
    def somebody(file: Path) -> None:
        if not read_users(file):
            raise ConfigError("names nobody; add somebody with steadyhand scada user")

    return _secret_fault(file, somebody)


def _files(
    loaded: Loaded,
    where: FieldPath,
    files: list[tuple[FieldPath, str | None, Callable[[Path], str | None]]],
    certificate: str | None,
    private_key: str | None,
) -> Iterator[Problem]:
    """Each file by what is wrong with it; where nothing is, certificate and key by each other."""
    found = False
    for path, name, fault_of in files:
        if name is None:
            continue
        fault = fault_of(loaded.path(name))
        if fault:
            found = True
            yield _problem(loaded, path, f"{name}: {fault}", "CFG_FILE")
    if not found and certificate is not None and private_key is not None:
        shown = read_certificates(loaded.path(certificate))[0].public_key()
        if shown != _key(loaded.path(private_key)).public_key():
            text = (
                f"{private_key}: is not the key of {certificate}; "
                "name the two that were made together"
            )
            yield _problem(loaded, (*where, "private_key"), text, "CFG_FILE")


def _certificate_fault(file: Path) -> str | None:
    try:
        read_certificates(file)
    except ConfigError as error:
        return _why(error, file)
    return None


def _why(error: ConfigError, file: Path) -> str:
    """The message without the file that it begins with: it is named already."""
    return str(error).removeprefix(f"{file}: ")


def _trusted_fault(place: Path) -> str | None:
    """A certificate, or a folder with at least one."""
    try:
        files = files_of([place])
    except LinkError as error:
        return str(error)
    if not files:
        return "is a folder without certificates; put those of the servers you trust there"
    for file in files:
        fault = _certificate_fault(file)
        if fault:
            return fault if file == place else f"in it, {file.name} {fault}"
    return None


def _revoked_fault(place: Path, trusted: list[Path]) -> str | None:
    """A revocation list of a trusted authority, or a folder of them."""
    try:
        authorities = [
            one
            for file in files_of(trusted)
            if _certificate_fault(file) is None
            for one in read_certificates(file)
        ]
        for file in files_of([place], LISTS):
            if not is_signed(read_list(file), authorities):
                return "is not signed by an authority in trusted; add its certificate there"
    except LinkError as error:
        return str(error)
    except ConfigError as error:
        return _why(error, place)
    except UNPARSABLE:
        return "is no revocation list in DER or PEM form"
    return None


def _own_certificate_fault(file: Path) -> str | None:
    """Our own must be within its dates and say by which URI we are known (OPC 10000-6)."""
    fault = _certificate_fault(file)
    if fault:
        return fault
    certificate = read_certificates(file)[0]
    now = datetime.now(UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        return (
            f"is valid from {certificate.not_valid_before_utc:%Y-%m-%d} to "
            f"{certificate.not_valid_after_utc:%Y-%m-%d} only: renew it, or set this clock right"
        )
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, *UNPARSABLE):
        uris = []
    if not uris:
        return "holds no application URI: make one with a URI among its alternative names"
    return None


def _key(file: Path) -> Any:  # noqa: ANN401  (any kind of private key)
    """The private key in `file`.

    Raises:
        ValueError, TypeError, UnsupportedAlgorithm: it holds none that is not encrypted.
    """
    return _parsed(read_secret(file))


@lru_cache(maxsize=1)
def _parsed(content: bytes) -> Any:  # noqa: ANN401
    """A private key from bytes; kept for the next question, because proving one takes long."""
    return load_private_key(content)


def _key_fault(file: Path) -> str | None:
    fault = _secret_fault(file)
    if fault:
        return fault
    try:
        _key(file)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return "is no unencrypted private key in PEM or DER form"
    return None


def _word_fault(file: Path) -> str | None:
    """A secret of one line: a password, a token."""
    return _secret_fault(file, read_word)


def _secret_fault(file: Path, read: Callable[[Path], object] = read_secret) -> str | None:
    """Why `read` refuses the file."""
    try:
        read(file)
    except ConfigError as error:
        fault = _why(error, file)
        hidden = file.parent.name == CREDENTIALS_FOLDER and not os.environ.get(CREDENTIALS)
        if hidden and not file.exists():
            fault += f"; outside the service: in {CREDENTIALS_FOLDER}/ beside the configuration"
        return fault
    return None


def _journal(loaded: Loaded) -> Iterator[Problem]:
    """The place of the journal, and of the plant's state beside it; who signs the journal."""
    config = loaded.config
    journal = loaded.path(config.journal.directory)
    fault = _shared_fault(loaded, journal)
    if not fault and not disk_trouble(journal):  # which is a warning
        fault = folder_fault(journal)
    lock = journal / "lock"
    if not fault and os.path.lexists(lock) and (lock.is_symlink() or not lock.is_file()):
        fault = f"{lock} is no regular file; move it away"
    if fault:
        yield _problem(loaded, ("journal", "directory"), fault, "CFG_FILE")
    elif fault := of_another_plant(state_folder(loaded) / KEPT_FILE, config.name):
        yield _problem(loaded, ("journal", "directory"), fault, "CFG_STATE")
    if config.journal.signing_key:
        why = _secret_fault(
            loaded.path(config.journal.signing_key), lambda _: journal_signer(loaded)
        )
        if why:
            text = f"{config.journal.signing_key}: {why}"
            yield _problem(loaded, ("journal", "signing_key"), text, "CFG_FILE")


def _places(loaded: Loaded) -> Iterator[Problem]:
    """Where the runtime writes, and what it reads beside the link's files."""
    config = loaded.config
    journal = loaded.path(config.journal.directory)
    yield from _journal(loaded)
    if config.operator:
        socket = loaded.path(config.operator.socket)
        fault = socket_fault(socket)
        if not fault and not (disk_trouble(journal) and _on_one_disk(socket.parent, journal)):
            fault = folder_fault(socket.parent)
        if socket.resolve() == journal.resolve():
            fault = "is the journal's directory; name a file of its own"
        if fault:
            yield _problem(loaded, ("operator", "socket"), fault, "CFG_FILE")
    if config.bundle and not loaded.path(config.bundle.trusted_keys).is_dir():
        text = f"{config.bundle.trusted_keys}: no folder; put the public keys you trust there"
        yield _problem(loaded, ("bundle", "trusted_keys"), text, "CFG_FILE")
    if config.metrics and config.metrics.token_file:
        why = _word_fault(loaded.path(config.metrics.token_file))
        if why:
            text = f"{config.metrics.token_file}: {why}"
            yield _problem(loaded, ("metrics", "token_file"), text, "CFG_FILE")


def disk_warning(loaded: Loaded) -> str:
    """What the disk of a journal that was here before says now; empty: it takes records."""
    trouble = disk_trouble(loaded.path(loaded.config.journal.directory))
    if not trouble:
        return ""
    driver = "the heuristic" if loaded.config.journal.required else "it"
    return (
        f"journal.directory: {trouble}; `run` keeps the record in memory until there is room "
        f"(AUDIT_DEGRADED), and {driver} drives meanwhile"
    )


def _on_one_disk(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_dev == other.stat().st_dev
    except OSError:
        return False


def _shared_fault(loaded: Loaded, journal: Path) -> str:
    """Why the journal may not lie where it is to lie: what other files are, or are under."""
    config = loaded.config
    others = {"this configuration": loaded.file}
    if config.bundle:
        others["the bundle"] = loaded.path(config.bundle.file)
        others["the trusted keys"] = loaded.path(config.bundle.trusted_keys) / "key"
    if isinstance(config.link, OpcUaLink) and config.link.security.certificate:
        others["the link's certificate"] = loaded.path(config.link.security.certificate)
    place = journal.resolve()
    for what, file in others.items():
        if place in file.resolve().parents:
            return f"{journal} holds {what}; name a folder of its own"
    return ""


def _panel(loaded: Loaded) -> Iterator[Problem]:
    """People with a token, and signals with a trend."""
    panel = loaded.config.panel
    if panel is None:
        return
    if panel.token_file is not None:
        file = loaded.path(panel.token_file)
        fault = _secret_fault(file, read_people)
        if fault:
            text = f"{panel.token_file}: {fault}"
            yield _problem(loaded, ("panel", "token_file"), text, "CFG_FILE")
    try:
        kind = plant_kind(loaded.config.plant.id)
    except ConfigError:
        return  # the plant is named already
    known = kind.plant(kind.parameters).observations.names
    for i, name in enumerate(panel.signals):
        if name not in known:
            text = f"the plant has no {name!r}; it has: {', '.join(known)}"
            yield _problem(loaded, ("panel", "signals", i), text, "CFG_UNKNOWN")
        elif name in panel.signals[:i]:
            text = f"{name} stands twice; remove one"
            yield _problem(loaded, ("panel", "signals", i), text, "CFG_DUP")


def _people(loaded: Loaded) -> Iterator[Problem]:
    """Users and groups that are named must exist."""
    operator = loaded.config.operator
    if operator is None:
        return
    if operator.group is not None:
        try:
            grp.getgrnam(operator.group)
        except KeyError:
            text = f"no group {operator.group!r} on this machine; groupadd it"
            yield _problem(loaded, ("operator", "group"), text, "CFG_USER")
    for role in ("operators", "engineers"):
        for i, name in enumerate(getattr(operator, role)):
            try:
                pwd.getpwnam(name)
            except KeyError:
                text = f"no user {name!r} on this machine"
                yield _problem(loaded, ("operator", role, i), text, "CFG_USER")


def _assembly(loaded: Loaded) -> Iterator[Problem]:
    """The last net: what is made from the file, made once and thrown away."""
    config = loaded.config
    try:
        parts = make_plant(loaded)
        make_heuristic(config, parts)
        make_modes(config, parts)
        Transfer(parts.outputs, config.fallback.transfer)
        if isinstance(config.link, OpcUaLink):
            opcua_settings(loaded, config.link)
            if any(tag.whole for tag in config.link.outputs.values()):
                make_limits(config, parts)
    except SafetyError as error:
        yield _problem(loaded, ("link", "outputs"), str(error), "CFG_BOUNDS")
    except SteadyhandError as error:
        yield _problem(loaded, (), str(error), "CFG_ASSEMBLY")


def _bundle(loaded: Loaded, known: list[Problem]) -> list[Problem]:
    """The bundle is verified as it would be at the start, in a limited child.

    Args:
        loaded: the configuration.
        known: what else is wrong; it is not named again in words about the bundle.
    """
    section = loaded.config.bundle
    if section is None or not loaded.path(section.trusted_keys).is_dir():
        return []
    try:
        parts = make_plant(loaded)
        make_gate(loaded.config, parts, open_bundle(loaded, parts))
    except BundleError as error:
        found = bundle_problem(loaded, error)
        return [] if found.field in {problem.field for problem in known} else [found]
    except (ConfigError, ModelError) as error:
        if known and isinstance(error, ConfigError):
            return []
        text = f"{section.file}: {error}"
        return [_problem(loaded, ("bundle", "file"), text, "BUNDLE_TRUST")]
    return []


def started_instead(loaded: Loaded, problems: list[Problem]) -> str:
    """What `run` would start although the configured bundle is refused; empty: it would not start.

    The same rule as at the start (`first_policy`): where a bundle ran here before, the copy kept
    of it is used, and where that is refused too, the heuristic drives. Bundles that are barred
    after crashes are known to the start alone.
    """
    if not problems or any(not problem.code.startswith("BUNDLE_") for problem in problems):
        return ""
    try:
        kept = kept_bundle(loaded)
    except BundleError:
        return ""
    if kept is None:
        return ""
    parts = make_plant(loaded)
    try:
        bundle = admit(loaded, parts, kept)
        bundle = bundle.tried(lambda: examine(bundle.spec, child_limits(loaded.config)))
        make_gate(loaded.config, parts, bundle)
    except (BundleError, ConfigError, ModelError) as error:
        driver = loaded.config.fallback.heuristic
        return f"the heuristic {driver}: the bundle that ran here last is refused, too: {error}"
    return f"{bundle.label}, which ran here last"


def go_live_words(loaded: Loaded) -> str:
    """What lets the configured bundle into mode full, or keeps it out; empty for a bad bundle."""
    try:
        section = loaded.config.bundle
        if section is None:
            return GoLive.read(loaded).words(None)
        bundle = admit(loaded, make_plant(loaded), loaded.path(section.file))
        return GoLive.read(loaded).words(bundle)
    except (BundleError, ConfigError):
        return ""


def bundle_problem(loaded: Loaded, error: BundleError) -> Problem:
    """A refused bundle, with the line that names it, or the folder of what ran here before."""
    section, journal = loaded.config.bundle, loaded.config.journal
    if error.code == "BUNDLE_STATE":
        text = f"{journal.directory}: {error}"
        return _problem(loaded, ("journal", "directory"), text, error.code)
    name = "" if section is None else f"{section.file}: "
    return _problem(loaded, ("bundle", "file"), f"{name}{error}", error.code)
