"""One seed, many independent streams: the same seed gives the same weights, bit for bit."""

import hashlib
import random
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch


class HasState(Protocol):
    """A torch module, or anything else with named tensors."""

    def state_dict(self) -> Mapping[str, torch.Tensor]:
        """Named tensors."""
        ...


def generator(seed: int, stream: str) -> np.random.Generator:
    """Generator of one named stream; streams of one seed are independent.

    Args:
        seed: the run's seed, >= 0.
        stream: what the numbers are for ("days", "shuffle" …).
    """
    key = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:4], "big")
    return np.random.default_rng(np.random.SeedSequence([seed, key]))


def make_deterministic(seed: int, threads: int = 1) -> None:
    """Seed torch and the standard library; only deterministic kernels, a fixed number of threads.

    The sum of a reduction depends on how many threads share it, so the number is part of the seed.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)


def weights_sha256(module: HasState) -> str:
    """SHA-256 over names, shapes and bytes of every tensor of a module."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        array = np.ascontiguousarray(tensor.detach().cpu().numpy())
        digest.update(f"{name}:{array.dtype}:{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
