"""Safety: the last word on every command before the wire."""
