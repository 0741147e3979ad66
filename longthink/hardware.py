"""The name of what a result was measured on."""

from __future__ import annotations

import platform

import torch


def hardware(device: torch.device | str) -> str:
    kind = torch.device(device)
    return torch.cuda.get_device_name(kind) if kind.type == "cuda" else f"{platform.machine()} CPU"
