"""Signed controller bundles: manifest, archive, signature, verified loading."""
