"""Plants: equations and parameters."""
