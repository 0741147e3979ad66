"""LSTM classifiers: the recurrence runs over tokens, and a step is a thinking step after the last one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from longthink.errors import UserError
from longthink.models.base import check_rows, models


class Context(NamedTuple):
    x: Tensor  # [batch, length, width]
    lengths: Tensor  # [batch]


class Memory(NamedTuple):
    """Hidden and cell states of all layers and directions: [batch, layers * directions, size]."""

    hidden: Tensor
    cell: Tensor


@models.add("lstm")
class LSTM(nn.Module):
    """An LSTM over tokens, in one or two directions.

    A thinking step feeds a blank token; most published runs take none.
    """

    capturable = False  # packing sequences of different lengths needs the lengths on the host

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        width: int = 200,
        layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        directions = 2 if bidirectional else 1
        if width % directions:
            raise UserError(f"A bidirectional LSTM halves its width, so {width} must be even.")
        self.layers, self.directions, self.dropout = layers, directions, dropout
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(
            width,
            width // directions,
            layers,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=dropout if layers > 1 else 0.0,
        )
        self.head = nn.Linear(width, classes)

    def look(self, tokens: Tensor) -> Context:
        check_rows(tokens)
        if tokens.numel() == 0:
            raise UserError(f"An LSTM reads [batch, length] with 1 token or more, not {list(tokens.shape)}.")
        lengths = (tokens != 0).sum(1)
        return Context(F.dropout(self.embedding(tokens), self.dropout, self.training), lengths)

    def start(self, context: Context) -> Memory:
        lengths = context.lengths.clamp_min(1).cpu()
        packed = pack_padded_sequence(context.x, lengths, batch_first=True, enforce_sorted=False)
        _, (hidden, cell) = self.lstm(packed)
        return Memory(hidden.transpose(0, 1).contiguous(), cell.transpose(0, 1).contiguous())

    def step(self, state: Memory, context: Context) -> Memory:
        if self.directions == 2:
            raise UserError("A bidirectional LSTM cannot think on after its input; ask for 0 steps.")
        blank = self.embedding(torch.zeros(len(state.hidden), 1, dtype=torch.long, device=state.hidden.device))
        memory = tuple(part.transpose(0, 1).contiguous() for part in state)
        _, (hidden, cell) = self.lstm(blank, memory)
        return Memory(hidden.transpose(0, 1).contiguous(), cell.transpose(0, 1).contiguous())

    def read(self, state: Memory, context: Context) -> Tensor:
        last = state.hidden[:, -self.directions :].flatten(1)
        return self.head(F.dropout(last, self.dropout, self.training))
