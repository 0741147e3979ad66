"""What a result was measured on, and how PyTorch is told to be fast there."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def hardware(device: torch.device | str) -> str:
    kind = torch.device(device)
    return torch.cuda.get_device_name(kind) if kind.type == "cuda" else f"{platform.machine()} CPU"


@contextmanager
def fast_products() -> Iterator[None]:
    """TF32 and the best convolutions. These settings belong to the whole process, not to us: they are put back."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.benchmark = before[1]
