"""What a result was measured on, and how PyTorch is told to be fast there."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from longthink.errors import UserError


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


def host_memory() -> float:
    """In bytes."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not on Windows
        return 16 * 2.0**30


def usable_device(name: str | torch.device) -> torch.device:
    """By name, or a sentence where it cannot be used."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(f"The device {str(name)!r} cannot be used on this machine; try cpu.") from None
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # Triton starts kernels on the current one, which plain "cuda" means as well
    return device
