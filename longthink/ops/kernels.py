"""What all Triton kernels here have in common. Triton itself is imported when a GPU needs it: it takes its time."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from longthink.errors import UserError

_TRITON = find_spec("triton") is not None


def can_run(x: Tensor, kind: torch.dtype | None = None) -> bool:
    """Whether kernels can work where this tensor lies, in its precision or in another ``kind``."""
    return x.is_cuda and _TRITON and (kind or x.dtype) in (torch.float32, torch.bfloat16, torch.float16)


def check_first_derivative() -> None:
    """In a kernel's backward pass: its result has no gradient of its own, and second derivatives would lack terms."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise UserError(
            "Kernels on a GPU know first derivatives alone; compute in float64, which uses no kernel, for second ones."
        )


def ceil_div(a: int, b: int) -> int:
    """Triton has it too, at three microseconds a call."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The least that is not smaller."""
    power = 1
    while power < n:
        power *= 2
    return power


def precise(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@torch.compiler.assume_constant_result  # which torch.compile cannot ask for; when it changes, it compiles anew
def product_precision(kind: torch.dtype) -> str:
    """How tiles are multiplied: float32 as exactly as torch is told to, TF32 otherwise."""
    exact = kind == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return "ieee" if exact else "tf32"
