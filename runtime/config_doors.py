"""Sections of a configuration about who comes in: `metrics`, `panel`, `scada`, `operator`."""

from ipaddress import ip_address
from typing import Annotated

from pydantic import Field, model_validator

from steadyhand.adapters.opcua.settings import INSECURE_WORD
from steadyhand.runtime.config_fields import (
    FileText,
    HostName,
    Section,
    SignalName,
    insecure,
    refuse,
)


def _loopback_only(listen: str, example: str) -> bool:
    """Can an address and port to listen on be reached from this machine alone?

    Raises:
        PydanticCustomError: it is no address and port.
    """
    host, _, port = listen.rpartition(":")
    try:
        address = ip_address(host.strip("[]"))
        if not 0 <= int(port) <= 65535:
            raise ValueError(port)
    except ValueError:
        raise refuse(
            "CFG_LISTEN", f"listen={listen!r}: an address such as 127.0.0.1:{example} is needed"
        ) from None
    return address.is_loopback


class Metrics(Section):
    """Prometheus endpoint."""

    listen: str = "127.0.0.1:9464"
    allow_remote: bool = False
    token_file: FileText | None = None
    plant_values: bool = Field(
        default=False, description="also show measurements and outputs, for the dashboards' trends"
    )

    @model_validator(mode="after")
    def _loopback(self) -> "Metrics":
        if not _loopback_only(self.listen, "9464") and not (self.allow_remote and self.token_file):
            raise refuse(
                "CFG_LISTEN",
                f"listen={self.listen!r} can be reached from outside: "
                "use 127.0.0.1, or set allow_remote and token_file",
            )
        return self


class Panel(Section):
    """Web page for the operator, on this machine only."""

    listen: str = "127.0.0.1:9465"
    token_file: FileText | None = Field(
        default=None,
        description="file of mode 0600 with a name and a token a line: these people may give "
        "commands from the page; without it the page only shows; may be "
        "${CREDENTIALS_DIRECTORY}/NAME",
    )
    hosts: list[HostName] = Field(
        default_factory=list,
        max_length=16,
        description="further names by which browsers reach the page, such as a proxy's",
    )
    signals: list[SignalName] = Field(
        default_factory=list,
        max_length=12,
        description="measurements with a trend; default: the first eight that are no forecast",
    )

    @model_validator(mode="after")
    def _loopback(self) -> "Panel":
        if not _loopback_only(self.listen, "9465"):
            raise refuse(
                "CFG_LISTEN",
                f"listen={self.listen!r} can be reached from outside: use 127.0.0.1, and ssh -L "
                "or a proxy with TLS in front of it",
            )
        return self


class Scada(Section):
    """OPC UA server of the runtime's own, for SCADA clients. Secure unless the long word says not.

    `steadyhand scada certificate` and `steadyhand scada user` make the files.
    """

    listen: str = "127.0.0.1:4841"
    allow_remote: bool = Field(default=False, description="needed for any other than loopback")
    certificate: FileText | None = Field(default=None, description="ours (DER or PEM)")
    private_key: FileText | None = Field(default=None, description="its key, mode 0600")
    trusted: FileText | None = Field(
        default=None, description="folder of the client certificates that are let in"
    )
    users_file: FileText | None = Field(
        default=None, description="users with their roles, mode 0600"
    )
    sessions: Annotated[int, Field(ge=1, le=64)] = Field(
        default=8, description="clients at the same time"
    )
    insecure_no_encryption: str | None = Field(
        default=None, description=f"only the word {INSECURE_WORD} lets anyone in"
    )

    @model_validator(mode="after")
    def _closed(self) -> "Scada":
        if not _loopback_only(self.listen, "4841") and not self.allow_remote:
            raise refuse(
                "CFG_LISTEN",
                f"listen={self.listen!r} can be reached from outside: use 127.0.0.1, or set "
                "allow_remote",
            )
        if insecure(self.insecure_no_encryption, self.users_file and "users_file"):
            return self
        needed = ("certificate", "private_key", "trusted", "users_file")
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            raise refuse(
                "CFG_SECURITY",
                f"a server that lets only the right people in needs {', '.join(missing)}; "
                "see docs/scada.md",
            )
        return self


class Operator(Section):
    """Control socket."""

    socket: FileText
    group: str | None = Field(default=None, description="group that may connect")
    operators: list[str] = Field(default_factory=list, description="users who may operate")
    engineers: list[str] = Field(default_factory=list, description="users who may swap bundles")
