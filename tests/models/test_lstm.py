"""LSTMs: against PyTorch's outputs, dropout, sequences of several lengths, thinking on."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from longthink.errors import UserError
from longthink.models import build
from longthink.think import think, unfold
from tests.models.dropped import check_half_is_dropped


@torch.no_grad()
@pytest.mark.parametrize(("bidirectional", "steps"), [(False, 0), (False, 2), (True, 0)])
def test_lstm_answers_from_its_last_layer(bidirectional: bool, steps: int) -> None:
    """As PyTorch's outputs are: those at the end, and of the other direction at the beginning."""
    torch.manual_seed(0)
    model = build("lstm", vocabulary=9, classes=4, width=8, layers=2, bidirectional=bidirectional).eval()
    tokens = torch.randint(1, 9, (3, 5))
    outputs, _ = model.lstm(model.embedding(F.pad(tokens, (0, steps))))  # a step reads a blank
    last = torch.cat([outputs[:, -1, :4], outputs[:, 0 if bidirectional else -1, 4:]], 1)
    torch.testing.assert_close(think(model, tokens, steps).logits, model.head(last))


@torch.no_grad()
def test_lstm_drops_its_embeddings_and_its_output() -> None:
    torch.manual_seed(0)
    model = build("lstm", vocabulary=9, classes=64, width=64, dropout=0.5).train()
    model.head.weight.copy_(torch.eye(64))  # logits are the output
    model.head.bias.zero_()
    tokens = torch.randint(1, 9, (4, 6))
    context = model.look(tokens)
    check_half_is_dropped(context.x, model.embedding(tokens))
    state = model.start(context)
    check_half_is_dropped(model.read(state, context), state.hidden[:, 0])


@torch.no_grad()
def test_lstm_drops_what_goes_from_layer_to_layer() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(1, 9, (4, 6))
    for layers in (1, 2):
        model = build("lstm", vocabulary=9, classes=4, width=16, layers=layers, dropout=0.5).eval()
        context = model.look(tokens)
        quiet = model.start(context).hidden
        model.train()  # the same embeddings, which are not dropped again
        noisy = model.start(context).hidden
        assert torch.equal(quiet[:, 0], noisy[:, 0])
        assert torch.equal(quiet[:, -1], noisy[:, -1]) == (layers == 1)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_lstm_needs_something_to_read(shape: tuple[int, int]) -> None:
    with pytest.raises(UserError, match=r"1 token or more, not \[\d, \d\]\."):
        think(build("lstm", vocabulary=9, classes=4, width=8), torch.zeros(shape, dtype=torch.long), 0)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_lstm_reads_to_the_end_of_each_sequence(bidirectional: bool) -> None:
    torch.manual_seed(0)
    model = build("lstm", vocabulary=9, classes=4, width=8, layers=2, bidirectional=bidirectional).eval()
    tokens = torch.tensor([[3, 1, 4, 0, 0], [1, 5, 8, 2, 6]])
    together = think(model, tokens, 0).logits
    torch.testing.assert_close(together[:1], think(model, tokens[:1, :3], 0).logits)
    assert not torch.allclose(together[0], together[1])


def test_lstm_thinks_on_with_a_blank() -> None:
    torch.manual_seed(0)
    model = build("lstm", vocabulary=9, classes=4, width=8).eval()
    states = [moment.state.hidden for moment in unfold(model, torch.tensor([[3, 1]]), 2)]
    assert not torch.allclose(states[0], states[1])
    both = build("lstm", vocabulary=9, classes=4, width=8, bidirectional=True)
    with pytest.raises(UserError, match="0 steps"):
        think(both, torch.tensor([[3, 1]]), 1)
