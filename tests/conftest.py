"""What all tests need: one thread, and Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every command that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Toy networks are fastest on one thread, and two processes on one thread each agree to the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def double_by_default() -> Iterator[None]:
    """For tests that compare with the public code, or with the same computed otherwise."""
    torch.set_default_dtype(torch.double)
    yield
    torch.set_default_dtype(torch.float32)
