"""One training update of the bAbI-sized DNC: the equations head by head beside the fast path.

The naive update loops over time, read heads and interface parts as the equations are printed; the fast one computes all
heads at once from one projection and replays a captured graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from longthink.bench.timing import device, median_seconds, surroundings
from longthink.layers.memory import EPSILON, Controls, Memory, take_apart
from longthink.models import build
from longthink.models.dnc import DNC, Computer
from longthink.tasks import Batch
from longthink.think import ThinkingModule
from longthink.training.compiled import CompiledStep
from longthink.training.graphs import GraphedObjective
from longthink.training.losses import Objective, Plan

BABI = {"size": 256, "cells": 256, "width": 64, "heads": 4, "embedding": 128}


class NaiveDNC(DNC):
    """Appendix A.1 equation by equation, one head at a time."""

    def advance(self, state: Computer, x: Tensor) -> tuple[Computer, Controls]:
        w, r = self.width, self.heads
        hidden, cell = self.controller(torch.cat([x, *state.reads.unbind(1)], -1), state.hidden, state.cell)
        interface = self.interface(hidden)
        xi = interface.clamp(-20, 20)  # Eq. A.1
        place = 0

        def part(size: int) -> Tensor:
            nonlocal place
            place += size
            return xi[:, place - size : place]

        def mask() -> Tensor | None:
            return part(w).sigmoid() * (1 - self.mask_floor) + self.mask_floor if self.masks else None  # Eq. A.2

        write_mask, write_key = mask(), part(w)
        erase, vector = part(w).sigmoid(), part(w)
        free = [part(1).sigmoid() for _ in range(r)]
        write_beta = 1 + F.softplus(part(1))
        allocation_gate, write_gate = part(1).sigmoid(), part(1).sigmoid()
        read_masks = [mask() for _ in range(r)]
        keys = [part(w) for _ in range(r)]
        betas = [1 + F.softplus(part(1)) for _ in range(r)]
        modes = [part(3).softmax(-1) for _ in range(r)]
        forward_s = [1 + F.softplus(part(1)) for _ in range(r)] if self.sharpness else None
        backward_s = [1 + F.softplus(part(1)) for _ in range(r)] if self.sharpness else None

        m = state.memory
        psi = torch.ones_like(m.usage)
        for i in range(r):
            psi = psi * (1 - free[i] * m.read[:, i])  # Eq. A.5
        last = m.written.detach()
        usage = (m.usage + last - m.usage * last) * psi  # Eq. A.6
        u = usage * (1 - EPSILON) + EPSILON
        order = u.argsort(dim=-1, stable=True)
        ranked = u.gather(1, order)
        all_before = torch.cat([torch.ones_like(u[:, :1]), ranked.cumprod(1)[:, :-1]], 1)
        allocation = torch.zeros_like(u).scatter(1, order, (1 - ranked) * all_before)
        content = _content(m.cells, write_key, write_beta, write_mask)
        written = write_gate * (allocation_gate * allocation + (1 - allocation_gate) * content)  # Eq. A.7
        cells = m.cells * psi[..., None] if self.deallocate else m.cells
        cells = cells * (1 - written[..., None] * erase[:, None]) + written[..., None] * vector[:, None]  # Eq. A.8
        decay = 1 - written[:, :, None] - written[:, None, :]
        link = decay * m.link + written[:, :, None] * m.precedence[:, None]  # Eq. A.9
        link = link.masked_fill(torch.eye(link.shape[1], dtype=torch.bool, device=link.device), 0.0)
        precedence = (1 - written.sum(-1, keepdim=True)) * m.precedence + written
        reads, addresses = [], []
        for i in range(r):
            ahead = torch.einsum("bij,bj->bi", link, m.read[:, i])
            behind = torch.einsum("bij,bi->bj", link, m.read[:, i])
            if forward_s is not None and backward_s is not None:
                ahead, behind = _sharp(ahead, forward_s[i]), _sharp(behind, backward_s[i])  # Eq. A.10
            content = _content(cells, keys[i], betas[i], read_masks[i])  # Eq. A.11
            address = modes[i][:, :1] * behind + modes[i][:, 1:2] * content + modes[i][:, 2:] * ahead  # Eq. A.12
            addresses.append(address)
            reads.append(torch.einsum("bnw,bn->bw", cells, address))
        memory = Memory(cells, usage, link, precedence, written, torch.stack(addresses, 1))
        controls = take_apart(interface, w, r, self.masks, self.sharpness, self.mask_floor)  # to be watched
        return Computer(hidden, cell, memory, torch.stack(reads, 1), state.outputs), controls


def _content(cells: Tensor, key: Tensor, beta: Tensor, mask: Tensor | None) -> Tensor:
    if mask is not None:
        key, cells = key * mask, cells * mask[:, None]
    score = torch.einsum("bw,bnw->bn", key, cells)
    score = score / (key.norm(dim=-1, keepdim=True) * cells.norm(dim=-1) + EPSILON)  # Eq. A.4
    return (score * beta).softmax(-1)  # Eq. A.3


def _sharp(weights: Tensor, s: Tensor) -> Tensor:
    d = weights + EPSILON
    d = (d / d.amax(-1, keepdim=True)) ** s
    return d / d.sum(-1, keepdim=True)


def measure(batch: int = 32, length: int = 200, repeats: int = 3, **sizes: int) -> dict[str, Any]:
    """Milliseconds of a forward and backward pass."""
    paths = (
        ("naive", "heads together", "graph", "compiled graph") if device() == "cuda" else ("naive", "heads together")
    )
    rows = []
    for path in paths:
        seconds = median_seconds(_update(path, batch, length, {**BABI, **sizes}), repeats)
        rows.append({"path": path, "batch": batch, "length": length, "milliseconds": 1e3 * seconds})
    return {"benchmark": "one training update of a DNC of bAbI's size", **surroundings(repeats), "rows": rows}


def _update(path: str, batch: int, length: int, sizes: dict[str, int]) -> Callable[[], Any]:
    torch.manual_seed(0)
    options: dict[str, Any] = {"vocabulary": 160, "classes": 160, **sizes}
    model = (NaiveDNC(**options) if path == "naive" else build("dnc", **options)).to(device())
    tokens = torch.randint(1, 160, (batch, length), device=device())
    problems, plan = Batch(tokens, tokens.clone()), Plan(0, 1, 0, 0.0)
    whole = cast(ThinkingModule, model)
    objective = Objective(whole, CompiledStep(whole) if path == "compiled graph" else None)
    if "graph" in path:
        graphed = GraphedObjective(objective, half=False, full_alone=True)
        return lambda: graphed.backward(problems, plan)

    def update() -> None:
        model.zero_grad()
        objective(problems, plan)["loss"].backward()

    return update
