"""Kernels without a GPU: a script is run by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_BEFORE = """
import torch
import triton.runtime.interpreter as interpreter

patch = interpreter._patch_lang_tensor
def patch_lang_tensor(tensor, scope):  # new versions of numpy refuse int(array([3])), which a run-time range() needs
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
interpreter._patch_lang_tensor = patch_lang_tensor

def poisoned(make):  # whatever is not written shows
    def empty(*size, **options):
        out = make(*size, **options)
        return out.fill_(float("nan") if out.is_floating_point() else -12345)
    return empty
torch.empty, torch.empty_like = poisoned(torch.empty), poisoned(torch.empty_like)
"""


def assert_equal_in_the_interpreter(script: str) -> None:
    """The script compares, and raises where something differs.

    In a process of its own: Triton reads TRITON_INTERPRET when a kernel is defined.
    """
    pytest.importorskip("triton", reason="the kernels need Triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    whole = _BEFORE + script + '\nprint("equal")\n'
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]
