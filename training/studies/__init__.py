"""One runnable file per claim."""
