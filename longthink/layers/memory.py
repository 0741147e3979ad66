"""The DNC's memory: writing, allocation, temporal links, reading (appendix A.1), with three independent repairs.

Masks (M) choose the part of a key that counts, de-allocation (D) erases what was freed, sharpness (S) keeps temporal
links from blurring. Without them this is the memory of Graves et al. (2016). All heads are computed at once.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

EPSILON = 1e-6  # of Eq. A.4, A.10 and of the usage that allocation sorts


class Memory(NamedTuple):
    """N cells of W numbers and what is known about them; R read heads."""

    cells: Tensor  # [batch, N, W]
    usage: Tensor  # [batch, N]
    link: Tensor  # [batch, N, N]: (i, j) is how much i was written right after j
    precedence: Tensor  # [batch, N]
    written: Tensor  # [batch, N]: the last write weighting
    read: Tensor  # [batch, R, N]: the last read weightings


class Controls(NamedTuple):
    """The interface vector, taken apart (Eq. A.1)."""

    write_mask: Tensor | None  # [batch, 1, W]
    write_key: Tensor  # [batch, 1, W]
    erase: Tensor  # [batch, W]
    vector: Tensor  # [batch, W]
    free: Tensor  # [batch, R]
    write_strength: Tensor  # [batch, 1]
    allocation_gate: Tensor  # [batch, 1]
    write_gate: Tensor  # [batch, 1]
    read_masks: Tensor | None  # [batch, R, W]
    read_keys: Tensor  # [batch, R, W]
    read_strengths: Tensor  # [batch, R]
    modes: Tensor  # [batch, R, 3]: backward, content, forward
    forward_sharpness: Tensor | None  # [batch, R]
    backward_sharpness: Tensor | None


def empty_memory(batch: int, cells: int, width: int, heads: int, like: Tensor) -> Memory:
    def zeros(*shape: int) -> Tensor:
        return like.new_zeros(batch, *shape)

    return Memory(
        zeros(cells, width), zeros(cells), zeros(cells, cells), zeros(cells), zeros(cells), zeros(heads, cells)
    )


def controls_size(width: int, heads: int, masks: bool, sharpness: bool) -> int:
    return sum(_sizes(width, heads, masks, sharpness))


def _sizes(width: int, heads: int, masks: bool, sharpness: bool) -> list[int]:
    write = [width * masks, width, width, width, heads, 1, 1, 1]
    read = [heads * width * masks, heads * width, heads, 3 * heads]
    return [*write, *read, heads * sharpness, heads * sharpness]


def mask_places(width: int, heads: int, sharpness: bool) -> tuple[slice, slice]:
    """Where the interface vector has the write mask and the read masks."""
    sizes = _sizes(width, heads, True, sharpness)
    before = sum(sizes[:8])
    return slice(0, sizes[0]), slice(before, before + sizes[8])


def take_apart(
    interface: Tensor, width: int, heads: int, masks: bool, sharpness: bool, mask_floor: float = 0.0
) -> Controls:
    """Squash each part of the interface vector into its range; as in the public code, after a clamp."""
    parts = interface.clamp(-20, 20).split(_sizes(width, heads, masks, sharpness), -1)
    (write_mask, write_key, erase, vector, free, write_strength, allocation, gate) = parts[:8]
    (read_masks, read_keys, read_strengths, modes, forward, backward) = parts[8:]

    def mask(part: Tensor) -> Tensor:
        return part.sigmoid() * (1 - mask_floor) + mask_floor  # Eq. A.2

    return Controls(
        write_mask=mask(write_mask).unflatten(-1, (1, width)) if masks else None,
        write_key=write_key.unflatten(-1, (1, width)),
        erase=erase.sigmoid(),
        vector=vector,
        free=free.sigmoid(),
        write_strength=oneplus(write_strength),
        allocation_gate=allocation.sigmoid(),
        write_gate=gate.sigmoid(),
        read_masks=mask(read_masks).unflatten(-1, (heads, width)) if masks else None,
        read_keys=read_keys.unflatten(-1, (heads, width)),
        read_strengths=oneplus(read_strengths),
        modes=modes.unflatten(-1, (heads, 3)).softmax(-1),
        forward_sharpness=oneplus(forward) if sharpness else None,
        backward_sharpness=oneplus(backward) if sharpness else None,
    )


def oneplus(x: Tensor) -> Tensor:
    return 1 + F.softplus(x)


def look_up(cells: Tensor, keys: Tensor, strengths: Tensor, masks: Tensor | None) -> Tensor:
    """Content weightings of all heads: [batch, heads, N] (Eq. A.3 and A.4)."""
    if masks is None:
        dots = keys @ cells.transpose(-1, -2)
        lengths = cells.norm(dim=-1)[:, None, :]
    else:
        # The mask falls on key and cells alike: k m . M m = (k m^2) . M and |M m|^2 = M^2 . m^2.
        squared = masks.square()
        dots = (keys * squared) @ cells.transpose(-1, -2)
        # Empty cells have length 0, where a root has no slope: the clamp makes it 0.
        lengths = (squared @ cells.square().transpose(-1, -2)).clamp_min(1e-30).sqrt()
        keys = keys * masks
    score = dots / (keys.norm(dim=-1, keepdim=True) * lengths + EPSILON)
    return (score * strengths[..., None]).softmax(-1)


def allocate(usage: Tensor) -> Tensor:
    """Where there is room: the least used cells first."""
    used = usage * (1 - EPSILON) + EPSILON
    sorted_usage, order = used.sort(dim=-1, stable=True)
    # A running product; that of PyTorch asks in its backward pass whether there are zeros, and waits for the answer.
    before = F.pad(sorted_usage.log(), (1, 0))[:, :-1].cumsum(-1).exp()
    return torch.zeros_like(usage).scatter(-1, order, (1 - sorted_usage) * before)


def sharpen(weights: Tensor, sharpness: Tensor | None) -> Tensor:
    """Raise to a power and normalise (Eq. A.10)."""
    if sharpness is None:
        return weights
    # d ** s / sum d ** s; the largest d, by which the equation divides before, cancels out.
    return (sharpness[..., None] * (weights + EPSILON).log()).softmax(-1)


def follow(read: Tensor, link: Tensor, c: Controls) -> tuple[Tensor, Tensor]:
    """What was written right after and right before the cells that were read last: [batch, R, N] each."""
    return sharpen(read @ link.transpose(-1, -2), c.forward_sharpness), sharpen(read @ link, c.backward_sharpness)


def access(memory: Memory, c: Controls, deallocate: bool) -> tuple[Memory, Tensor]:
    """Write, then read: the new memory and what the heads read, [batch, R, W]."""
    kept = reduce(torch.mul, (1 - c.free[..., None] * memory.read).unbind(1))  # psi of Eq. A.5
    # Without gradient through the last write, as in the public code.
    written = memory.written.detach()
    usage = (memory.usage + written - memory.usage * written) * kept  # Eq. A.6
    content = look_up(memory.cells, c.write_key, c.write_strength, c.write_mask)[:, 0]
    w = c.write_gate * (c.allocation_gate * allocate(usage) + (1 - c.allocation_gate) * content)  # Eq. A.7
    cells = memory.cells * kept[..., None] if deallocate else memory.cells
    cells = cells * (1 - w[..., None] * c.erase[:, None]) + w[..., None] * c.vector[:, None]  # Eq. A.8

    link = (1 - w[:, :, None] - w[:, None, :]) * memory.link + w[:, :, None] * memory.precedence[:, None]  # Eq. A.9
    link = link * (1 - torch.eye(link.shape[-1], dtype=link.dtype, device=link.device))
    precedence = (1 - w.sum(-1, keepdim=True)) * memory.precedence + w

    forward, backward = follow(memory.read, link, c)
    content = look_up(cells, c.read_keys, c.read_strengths, c.read_masks)  # Eq. A.11
    read = c.modes[..., :1] * backward + c.modes[..., 1:2] * content + c.modes[..., 2:] * forward  # Eq. A.12
    return Memory(cells, usage, link, precedence, w, read), read @ cells
