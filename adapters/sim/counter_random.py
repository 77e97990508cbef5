"""Random numbers that depend on their arguments only, so that a resumed run repeats them."""

from math import cos, log1p, pi, sqrt

_MASK = (1 << 64) - 1


def uniform(seed: int, stream: int, time_s: float) -> float:
    """A number in [0, 1) that depends on its arguments only, so that a resumed run repeats it.

    Counter-based generator: two rounds of the SplitMix64 finaliser (Steele, Lea and Flood,
    "Fast splittable pseudorandom number generators", OOPSLA 2014). Time counts in milliseconds.
    """
    z = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03 + round(time_s * 1e3)) & _MASK
    for _ in range(2):
        z = (z + 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        z ^= z >> 31
    return (z >> 11) * 2.0**-53


def normal(seed: int, stream: int, time_s: float) -> float:
    """A standard normal number that depends on its arguments only (Box and Muller, 1958)."""
    radius = sqrt(-2.0 * log1p(-uniform(seed, 2 * stream, time_s)))
    return radius * cos(2.0 * pi * uniform(seed ^ _MASK, 2 * stream + 1, time_s))
