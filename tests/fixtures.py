"""Where the parity fixtures, the published numbers and the real data lie, beside the checkout; tests skip with a reason
where they don't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

SHARED = Path(__file__).resolve().parents[2] / "shared"


RELATIVE_ATTENTION = {
    "data_to_q.weight": "query.weight",
    "data_to_kv.weight": "key_value.weight",
    "multi_head_merge.weight": "merge.weight",
    "global_content_bias": "content_bias",
    "global_pos_bias": "position_bias",
    "pos_to_pq.weight": "position.weight",
}
"""Weights of the public code by our names."""


def fixture(name: str) -> dict[str, Tensor]:
    path = SHARED / "fixtures" / f"{name}.safetensors"
    if not path.exists():
        pytest.skip(f"no parity fixture {path.name} beside the checkout")
    return load_file(path)


def published(name: str, table: str) -> list[dict[str, Any]]:
    """The rows of a printed table."""
    path = SHARED / "published" / f"{name}.json"
    if not path.exists():
        pytest.skip(f"no published numbers {path.name} beside the checkout")
    return json.loads(path.read_text())[table]["rows"]


def real_data(relative: str) -> Path:
    path = SHARED / "data" / relative
    if not path.exists():
        pytest.skip(f"no real data {relative} beside the checkout")
    return path
