"""Settings of one OPC UA link. Plain frozen data; checked here, never changed while running."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from urllib.parse import urlparse

from steadyhand.controllers.errors import ConfigError

POLICIES = ("Aes256Sha256RsaPss", "Aes128Sha256RsaOaep", "Basic256Sha256")
"""The security policies we speak; the deprecated ones and None are not in the list."""
INSECURE_WORD = "i_accept_that_anyone_on_the_network_can_drive_the_plant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Who we are, whom we trust. Always sign-and-encrypt, unless the long word says otherwise."""

    policy: str = "Basic256Sha256"
    certificate: Path | None = None
    """Our application certificate, PEM or DER."""
    private_key: Path | None = None
    """Its key, PEM or DER, mode 0600."""
    trusted: tuple[Path, ...] = ()
    """Server certificates, or CA certificates that signed them. Nothing else is trusted."""
    revoked: tuple[Path, ...] = ()
    """Certificate revocation lists, PEM or DER."""
    refuse_overdue: bool = False
    """No new connection on the word of a revocation list whose next one is overdue."""
    check_host: bool = True
    """The host of the endpoint must stand in the server's certificate."""
    user: str = ""
    password_file: Path | None = None
    """One line, mode 0600."""
    allow_anonymous: bool = False
    """Log in without a user: our application certificate alone must then say who we are."""
    insecure_no_encryption: str = ""
    """The exact long word, or nothing. Raises a fault for as long as it is in use."""

    @property
    def insecure(self) -> bool:
        """Is the channel open for everyone to read and write?"""
        return self.insecure_no_encryption == INSECURE_WORD

    def __post_init__(self) -> None:
        """Refuse half-configured security.

        Raises:
            ConfigError: what is missing or contradicts, and what to write instead.
        """
        if self.insecure_no_encryption and not self.insecure:
            raise ConfigError(
                f"insecure_no_encryption: {self.insecure_no_encryption!r} does not switch "
                "encryption off: leave it out, or write the whole word from the documentation"
            )
        if bool(self.user) != (self.password_file is not None):
            raise ConfigError("security: user and password_file belong together: give both or none")
        if self.insecure:
            if self.user:
                raise ConfigError("security: a password is never sent over an unencrypted channel")
            return
        if self.policy not in POLICIES:
            raise ConfigError(
                f"security: policy {self.policy!r} is not accepted: one of {', '.join(POLICIES)}"
            )
        if self.certificate is None or self.private_key is None or not self.trusted:
            raise ConfigError(
                "security: an encrypted link needs certificate, private_key and trusted"
            )
        if not self.user and not self.allow_anonymous:
            raise ConfigError("security: give user and password_file, or allow_anonymous: true")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpcUaSettings:
    """Where the plant is and how patient we are. All times are wall seconds."""

    endpoint: str
    """opc.tcp://host:port/path, without user or password."""
    server_uri: str
    """The server's application URI: the plant's identity."""
    security: Security
    period_s: float
    """Time between two ticks of the loop."""
    time_scale: float = 1.0
    """Plant seconds per wall second: 1 on a real plant."""
    subscribe: bool = True
    """Data comes by subscription, with cyclic reads as fallback; False: cyclic reads only."""
    sampling_s: float = 0.0
    """How often the server samples and we read; 0 means half the period, at most 1 s."""
    request_timeout_s: float = 1.0
    connect_timeout_s: float = 5.0
    """For the whole of connecting and verifying."""
    backoff_first_s: float = 0.1
    backoff_cap_s: float = 1.0
    command_life_s: float = 1.0
    """A command older than this when its turn comes is dropped."""
    heartbeat_timeout_s: float = 5.0
    """The plant's heartbeat must change within this."""
    keep_alive_s: float = 1.0
    """Asked-for largest silence of a healthy subscription."""
    future_tolerance_s: float = 1.0
    """A stamp further ahead of the server's own clock than this is invalid."""
    clock_offset_limit_s: float = 60.0
    """Tell when the server's clock is further from ours than this (ages are corrected anyway)."""
    flap_count: int = 3
    flap_window_s: float = 60.0
    """The link lost `flap_count` times within the window is flapping: no writes until it is not."""
    max_message_bytes: int = 1 << 20
    session_life_s: float = 30.0
    """Asked-for life of an abandoned session, short so that a crash does not eat the slots."""
    channel_life_s: float = 600.0

    @property
    def sample_period_s(self) -> float:
        """How often to sample."""
        return self.sampling_s or min(0.5 * self.period_s, 1.0)

    @property
    def pulse_s(self) -> float:
        """How often the link proves itself alive."""
        return min(self.sample_period_s, 0.5)

    def __post_init__(self) -> None:
        """Refuse impossible numbers.

        Raises:
            ConfigError: names the setting, its value and the bound.
        """
        url = urlparse(self.endpoint)
        if url.scheme != "opc.tcp" or not url.hostname or not url.port or "@" in url.netloc:
            raise ConfigError(f"endpoint {self.endpoint!r}: write opc.tcp://host:port/path")
        if not self.server_uri:
            raise ConfigError("server_uri is missing: the plant is known by its application URI")
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if name == "sampling_s" and value == 0.0:
                continue
            if isinstance(value, (int, float)) and not isinstance(value, bool):  # noqa: SIM102
                if not (isfinite(value) and value > 0):
                    raise ConfigError(f"{name}={value}: must be finite and > 0")
        if self.sample_period_s > 0.5 * self.period_s:
            raise ConfigError(
                f"sampling_s={self.sampling_s}: at most half the period ({0.5 * self.period_s} s)"
            )
