"""Pre-flight: everything a configuration points to, looked at before anything is driven.

Every problem is named at once. Nothing is written and no connection is opened.
"""

import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography import x509

from steadyhand.controllers.catalogue import plant_kind
from steadyhand.controllers.errors import BundleError, ConfigError, ModelError
from steadyhand.controllers.signals import SignalSet
from steadyhand.runtime.assemble import (
    make_gate,
    make_plant,
    opcua_tags,
    open_bundle,
    site_parameters,
    tightened,
)
from steadyhand.runtime.config import Loaded, OpcUaLink, load_config
from steadyhand.runtime.quantity import same_dimension
from steadyhand.runtime.yaml_source import Path as FieldPath
from steadyhand.runtime.yaml_source import Problem


def check(file: Path) -> tuple[Loaded | None, list[Problem]]:
    """Look at the configuration `file` and at everything it points to.

    Returns:
        the configuration when it could be read, and every problem found.
    """
    loaded = load_config(file)
    if not isinstance(loaded, Loaded):
        return None, loaded
    problems = [*_plant(loaded), *_link_files(loaded), *_places(loaded), *_people(loaded)]
    problems += _bundle(loaded)
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
        signals = {name: tag.unit for name, tag in config.link.signals.items()}
        outputs = {name: tag.unit for name, tag in config.link.outputs.items()}
        yield from _names(loaded, "signals", plant.observations, signals)
        yield from _names(loaded, "outputs", plant.outputs, outputs)
        try:
            opcua_tags(make_plant(loaded), config.link)
        except ConfigError as error:
            if set(signals) == set(plant.observations.names):
                yield _problem(loaded, ("link",), str(error), "CFG_ADDRESS")


def _names(
    loaded: Loaded, section: str, wanted: SignalSet, given: dict[str, str | None]
) -> Iterator[Problem]:
    """Every signal of the plant exactly once, in a unit that means the same."""
    for name in wanted.names:
        if name not in given:
            text = f"the plant needs {name} [{wanted.signals[wanted.index(name)].unit}]; add it"
            yield _problem(loaded, ("link", section, name), text, "CFG_MISSING")
    for name, unit in given.items():
        path: FieldPath = ("link", section, name)
        if name not in wanted.names:
            text = f"the plant has no {name!r}; it has: {', '.join(wanted.names)}"
            yield _problem(loaded, path, text, "CFG_UNKNOWN")
            continue
        needed = wanted.signals[wanted.index(name)].unit
        if unit is not None and unit != needed:
            why = (
                f"the server must deliver {needed}; change the tag there"
                if same_dimension(unit, needed)
                else f"that is another dimension than {needed}"
            )
            yield _problem(loaded, (*path, "unit"), f"{unit!r}: {why}", "CFG_UNIT")


def _link_files(loaded: Loaded) -> Iterator[Problem]:
    """Certificates and secrets of an OPC UA link."""
    if not isinstance(loaded.config.link, OpcUaLink):
        return
    security = loaded.config.link.security
    where: FieldPath = ("link", "security")
    files: list[tuple[FieldPath, str | None, Callable[[Path], str | None]]] = [
        ((*where, "certificate"), security.certificate, _certificate_fault),
        ((*where, "private_key"), security.private_key, _secret_fault),
        ((*where, "password_file"), security.password_file, _secret_fault),
    ]
    files += [
        ((*where, "trusted", i), name, _certificate_fault)
        for i, name in enumerate(security.trusted)
    ]
    for path, name, fault_of in files:
        if name is None:
            continue
        fault = fault_of(loaded.path(name))
        if fault:
            yield _problem(loaded, path, f"{name}: {fault}", "CFG_FILE")


def _certificate_fault(file: Path) -> str | None:
    try:
        content = file.read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    try:
        if content.startswith(b"-----"):
            x509.load_pem_x509_certificate(content)
        else:
            x509.load_der_x509_certificate(content)
    except ValueError:
        return "is no X.509 certificate in DER or PEM form"
    return None


def _secret_fault(file: Path) -> str | None:
    try:
        mode = file.stat().st_mode
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not stat.S_ISREG(mode):
        return "is no regular file"
    if mode & 0o077:
        return f"has mode {stat.S_IMODE(mode):04o}: others could read it; chmod 600 it"
    if not os.access(file, os.R_OK):
        return "cannot be read by this user"
    return None


def _places(loaded: Loaded) -> Iterator[Problem]:
    """Folders that must be writable."""
    config = loaded.config
    places: list[tuple[FieldPath, Path]] = [
        (("journal", "directory"), loaded.path(config.journal.directory))
    ]
    if config.operator:
        socket = loaded.path(config.operator.socket)
        places.append((("operator", "socket"), socket.parent))
        if len(os.fsencode(socket)) > 107:
            text = f"{socket}: longer than the 107 bytes a Unix socket's name may have"
            yield _problem(loaded, ("operator", "socket"), text, "CFG_FILE")
    for path, folder in places:
        existing = folder
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            yield _problem(loaded, path, f"{existing} is no folder", "CFG_FILE")
        elif not os.access(existing, os.W_OK | os.X_OK):
            text = f"{existing} cannot be written by {pwd.getpwuid(os.getuid()).pw_name}"
            yield _problem(loaded, path, text, "CFG_FILE")
    if config.metrics and config.metrics.token_file:
        fault = _secret_fault(loaded.path(config.metrics.token_file))
        if fault:
            text = f"{config.metrics.token_file}: {fault}"
            yield _problem(loaded, ("metrics", "token_file"), text, "CFG_FILE")


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


def _bundle(loaded: Loaded) -> Iterator[Problem]:
    """The bundle is verified as it would be at the start, in a limited child."""
    section = loaded.config.bundle
    if section is None:
        return
    try:
        parts = make_plant(loaded)
        make_gate(loaded.config, parts, open_bundle(loaded, parts))
    except BundleError as error:
        yield _problem(loaded, ("bundle", "file"), f"{section.file}: {error}", error.code)
    except ModelError as error:
        yield _problem(loaded, ("bundle", "file"), f"{section.file}: {error}", "BUNDLE_TRUST")
    except ConfigError as error:
        if not loaded.path(section.trusted_keys).is_dir():
            yield _problem(loaded, ("bundle", "trusted_keys"), str(error), "CFG_FILE")
