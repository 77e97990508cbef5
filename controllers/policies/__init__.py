"""Policies: from an observation to a proposal."""
