"""The error family: each message names the thing, the value, the bound and the remedy."""


class SteadyhandError(Exception):
    """Base of every error this project raises on purpose."""


class ConfigError(SteadyhandError):
    """A configuration that must not be run. The process exits with status 78 (EX_CONFIG)."""


class SignalError(ConfigError):
    """A signal that is unknown, doubled, or declared with impossible numbers."""


class ModelError(SteadyhandError):
    """A policy graph that cannot be loaded, or answers a known question wrongly.

    `code` says which check refused it: LOAD, LIMIT, OPSET, IO, SHAPE, GOLDEN, NONDET, CONST,
    PROVIDER. A bundle refused for it carries the same word behind `BUNDLE_`.
    """

    def __init__(self, message: str, code: str = "LOAD") -> None:
        super().__init__(message)
        self.code = code


class BundleError(SteadyhandError):
    """A controller bundle that is refused. `code` is the reason code for the journal."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class LinkError(SteadyhandError):
    """The plant cannot be reached, or is not the plant it should be."""


class SafetyError(SteadyhandError):
    """A safety model or filter set up with numbers that void its guarantee."""


class JournalError(SteadyhandError):
    """A journal that cannot be read, or whose chain is broken."""


class FileError(SteadyhandError):
    """A file that a person named and that cannot be read or written."""


class RequestError(SteadyhandError):
    """A person's request that is refused. `code` is what the client and the journal get."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
