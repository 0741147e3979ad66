"""The Differentiable Neural Computer with masked keys, real de-allocation and sharp links (chapter 2, appendix A).

Its recurrence runs over the sequence: ``start`` reads it, and a step is a thinking step after it, with a blank input.
``masks``, ``deallocate`` and ``sharpness`` are the three repairs; without any it is the DNC of Graves et al. (2016).
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from longthink.errors import UserError
from longthink.layers.linear import Linear
from longthink.layers.memory import (
    Controls,
    Memory,
    access,
    controls_size,
    empty_memory,
    follow,
    mask_places,
    take_apart,
)
from longthink.models.base import check_rows, described, models
from longthink.think import note, wanted

NOTED = (
    "write_address",
    "read_address",
    "read_modes",
    "usage",
    "link",
    "forward_links",
    "backward_links",
    "read_mask",
    "write_mask",
)


class Context(NamedTuple):
    x: Tensor  # [batch, length, inputs]
    lengths: Tensor  # [batch]


class Computer(NamedTuple):
    """Everything that one time step hands to the next, and the outputs so far."""

    hidden: Tensor  # [batch, size]
    cell: Tensor  # [batch, size]
    memory: Memory
    reads: Tensor  # [batch, R, W]
    outputs: Tensor  # [batch, length, classes x outputs]


class LSTMController(nn.Module):
    """One layer; gate rows are forget, input, output and data, and the forget gate starts open."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.from_input, self.from_hidden = Linear(inputs, 4 * size), Linear(size, 4 * size, bias=False)
        # Each gate counts all of its inputs; the data rows get the gain of tanh.
        bound = math.sqrt(3) * math.sqrt(2 / (size + inputs + size))
        for part in (self.from_input, self.from_hidden):
            nn.init.uniform_(part.weight, -bound, bound)
            with torch.no_grad():
                part.weight[3 * size :] *= 5 / 3
        nn.init.zeros_(self.from_input.bias)
        nn.init.ones_(self.from_input.bias[:size])

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        forget, enter, leave, data = (self.from_input(x) + self.from_hidden(hidden)).chunk(4, -1)
        cell = forget.sigmoid() * cell + enter.sigmoid() * data.tanh()
        return leave.sigmoid() * cell.tanh(), cell


class FeedforwardController(nn.Module):
    """Without a memory of its own."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.from_input = Linear(inputs, size)
        nn.init.xavier_uniform_(self.from_input.weight)
        nn.init.zeros_(self.from_input.bias)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        return self.from_input(x).tanh(), cell


@models.add("dnc")
class DNC(nn.Module):
    """The Differentiable Neural Computer: an LSTM that writes into a memory and reads from it.

    Takes vectors (``inputs``) or tokens (``vocabulary``); answers at every time step, or once at the end.
    A thinking step comes before the answer at the end. Where every time step has its answer they are given while it
    reads, and later steps change none: there time to think is part of the sequence, as bAbI's three blanks between each
    question of a story and its answer. ``dropout`` falls on embedded tokens. Masks begin at sigmoid(``mask_bias``): the
    text suggests 1, the public code has 0.

    Sequences may be longer than the memory. When no cell is free, allocation offers none, and what is to be written
    there is lost until reads free cells; where the network asks for content instead, cells are written over.
    """

    compiled_part = "advance"
    worth_compiling = repeats = True
    wants_float32 = True
    """Products of hundreds of usages and links near 1 do not bear rounding to three digits."""

    def __init__(
        self,
        classes: int,
        inputs: int | None = None,
        vocabulary: int | None = None,
        outputs: int = 1,
        size: int = 32,
        cells: int = 16,
        width: int = 16,
        heads: int = 1,
        masks: bool = True,
        deallocate: bool = True,
        sharpness: bool = True,
        mask_floor: float = 0.0,
        mask_bias: float = 0.0,
        controller: Literal["lstm", "feedforward"] = "lstm",
        embedding: int = 128,
        answer: Literal["every", "last"] = "every",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        _check(inputs, vocabulary, size, cells, width, heads, mask_floor, controller, answer)
        self.classes, self.outputs, self.answer = classes, outputs, answer
        self.inputs, self.dropout = inputs, dropout
        self.cells, self.width, self.heads, self.size = cells, width, heads, size
        self.masks, self.deallocate, self.sharpness, self.mask_floor = masks, deallocate, sharpness, mask_floor
        self.embedding = None if vocabulary is None else nn.Embedding(vocabulary, embedding)
        seen = (embedding if vocabulary is not None else inputs or 0) + heads * width
        self.controller = (LSTMController if controller == "lstm" else FeedforwardController)(seen, size)
        self.interface = Linear(size, controls_size(width, heads, masks, sharpness))
        self.from_controller = Linear(size, classes * outputs)
        self.from_reads = Linear(heads * width, classes * outputs)
        for part in (self.interface, self.from_controller, self.from_reads):
            nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(part.bias)
        if masks:
            with torch.no_grad():
                for place in mask_places(width, heads, sharpness):
                    self.interface.bias[place] = mask_bias

    def look(self, x: Tensor) -> Context:
        if self.embedding is None:
            if x.dim() != 3 or x.shape[-1] != self.inputs or not x.is_floating_point():
                wanted = f"floating-point vectors [batch, length, {self.inputs}]"
                raise UserError(f"This DNC reads {wanted}, not {described(x, 3)}.")
            there = F.pad((x != 0).any(-1), (1, 0))  # a vector of zeros in between is one too
            places = torch.arange(there.shape[1], device=x.device)
            return Context(x, (there * places).amax(1))
        check_rows(x)
        return Context(F.dropout(self.embedding(x), self.dropout, self.training), (x != 0).sum(1))

    def start(self, context: Context) -> Computer:
        """Read the whole sequence. For an answer at the end, shorter ones stop at theirs: padding leaves no trace.
        Where every time step has its answer they read it too, after all that counts."""
        x = context.x
        state = self._empty(x)
        rows = x.transpose(0, 1).contiguous()  # a step's input looks the same whatever the length: compiled once
        hidden: list[Tensor] = []
        reads: list[Tensor] = []
        notes: dict[str, list[Tensor]] = {name: [] for name in NOTED if wanted(name)}
        for t, row in enumerate(rows.unbind()):
            new, controls = self.advance(state, row)
            _watch(notes, state.memory, new.memory, controls)
            if self.answer == "last":  # the answer must not see the padding
                state = _choose(context.lengths > t, new, state)
            else:
                hidden.append(new.hidden)
                reads.append(new.reads)
                state = new
        for name, values in notes.items():
            note(name, torch.stack(values, 1))
        if hidden:  # nobody waits for outputs: all at once
            return state._replace(outputs=self._output(torch.stack(hidden, 1), torch.stack(reads, 1)))
        return state

    def step(self, state: Computer, context: Context) -> Computer:
        """Think on with a blank input: no token, or no bit set where bits are -1 and 1."""
        notes: dict[str, list[Tensor]] = {name: [] for name in NOTED if wanted(name)}
        silence = -1.0 if self.embedding is None else 0.0
        blank = context.x.new_full((len(context.x), context.x.shape[-1]), silence)
        # Without the outputs, whose number is that of the time steps: this is compiled once for all lengths.
        bare = state._replace(outputs=blank.new_zeros(len(blank), 0, state.outputs.shape[-1]))
        new, controls = self.advance(bare, blank)
        _watch(notes, state.memory, new.memory, controls)
        for name, values in notes.items():
            note(name, values[0])
        return new._replace(outputs=state.outputs)

    def read(self, state: Computer, context: Context) -> Tensor:
        """Logits [batch, classes, length, outputs], without the last axis for one output; or [batch, classes]."""
        if self.answer == "last":
            return self._output(state.hidden, state.reads)
        logits = state.outputs.unflatten(-1, (self.classes, self.outputs)).movedim(2, 1)
        return logits[..., 0] if self.outputs == 1 else logits

    def advance(self, state: Computer, x: Tensor) -> tuple[Computer, Controls]:
        """One time step."""
        seen = torch.cat([x, state.reads.flatten(1)], -1)
        hidden, cell = self.controller(seen, state.hidden, state.cell)
        controls = take_apart(
            self.interface(hidden), self.width, self.heads, self.masks, self.sharpness, self.mask_floor
        )
        memory, reads = access(state.memory, controls, self.deallocate)
        return Computer(hidden, cell, memory, reads, state.outputs), controls

    def _output(self, hidden: Tensor, reads: Tensor) -> Tensor:
        output: Tensor = self.from_controller(hidden) + self.from_reads(reads.flatten(-2))
        return output

    def _empty(self, x: Tensor) -> Computer:
        batch = len(x)

        def zeros(*shape: int) -> Tensor:
            return x.new_zeros(batch, *shape)

        memory = empty_memory(batch, self.cells, self.width, self.heads, x)
        out = self.classes * self.outputs
        state = Computer(zeros(self.size), zeros(self.size), memory, zeros(self.heads, self.width), zeros(0, out))
        if torch.is_grad_enabled():  # as in all later states, so that the first step is not compiled by itself
            for part in (state.hidden, state.cell, *memory, state.reads):
                part.requires_grad_()
        return state


def _watch(notes: dict[str, list[Tensor]], before: Memory, memory: Memory, controls: Controls) -> None:
    """Keep what somebody asked for."""
    links = "forward_links" in notes or "backward_links" in notes
    forward, backward = follow(before.read, memory.link, controls) if links else (None, None)
    seen = {
        "write_address": memory.written,
        "read_address": memory.read,
        "read_modes": controls.modes,
        "usage": memory.usage,
        "link": memory.link,
        "forward_links": forward,
        "backward_links": backward,
        "read_mask": controls.read_masks,
        "write_mask": controls.write_mask,
    }
    for name, values in notes.items():
        value = seen[name]
        if value is None:
            raise UserError(f"This DNC has no {name.replace('_', ' ')}: it was built without masks.")
        values.append(value)


def _choose(there: Tensor, new: Computer, old: Computer) -> Computer:
    """The new state of those whose sequence goes on, the old one of the others."""

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(there.view(-1, *(1,) * (a.dim() - 1)), a, b)

    memory = Memory(*(choose(a, b) for a, b in zip(new.memory, old.memory, strict=True)))
    return Computer(
        choose(new.hidden, old.hidden),
        choose(new.cell, old.cell),
        memory,
        choose(new.reads, old.reads),
        new.outputs,
    )


def _check(
    inputs: int | None,
    vocabulary: int | None,
    size: int,
    cells: int,
    width: int,
    heads: int,
    mask_floor: float,
    controller: str,
    answer: str,
) -> None:
    if (inputs is None) == (vocabulary is None):
        raise UserError("A DNC takes either inputs (vectors) or a vocabulary (tokens).")
    if min(size, cells, width, heads) < 1:
        sizes = f"{size}, {cells}, {width} and {heads}"
        raise UserError(f"A DNC needs a size, cells, width and heads of 1 or more, not {sizes}.")
    if not 0 <= mask_floor <= 1:
        raise UserError(f"mask_floor must be from 0 to 1, not {mask_floor}.")
    if controller not in ("lstm", "feedforward"):
        raise UserError(f"controller must be lstm or feedforward, not {controller!r}.")
    if answer not in ("every", "last"):
        raise UserError(f"answer must be every or last, not {answer!r}.")
