"""What dropout leaves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


def check_half_is_dropped(found: Tensor, whole: Tensor) -> None:
    """That a dropout of 0.5 has been here, and only one."""
    dropped = found == 0
    torch.testing.assert_close(found, torch.where(dropped, 0.0, 2 * whole))
    assert dropped.double().mean().item() == pytest.approx(0.5, abs=0.1)
