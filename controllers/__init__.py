"""Decide: what to do with one observation. No I/O, no clock, no network, no torch."""
