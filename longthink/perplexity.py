"""How well a language model predicts a text: bits per byte, bits per token, perplexity.

The text is read in blocks, and each block looks back at the memory of those before it; how far, is up to the memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from longthink.errors import UserError
from longthink.layers.causal import CausalRelativeAttention
from longthink.loading import Loaded
from longthink.models.language import Language, Memory
from longthink.tasks.base import Split
from longthink.tasks.text import Stream, Text, bits
from longthink.think import think


class Measured(NamedTuple):
    """What a text cost."""

    bits: float
    tokens: int
    """Predictions that were counted."""
    bytes: float
    """Of the text that they stand for; those of which the vocabulary knows nothing are none of them."""

    @property
    def bits_per_byte(self) -> float:
        """Bits per character, where the published tables say so, are these."""
        return self.bits / self.bytes if self.bytes else math.inf

    @property
    def bits_per_token(self) -> float:
        return self.bits / self.tokens

    @property
    def perplexity(self) -> float:
        """Per token; infinite where a model is that bad."""
        return 2**self.bits_per_token if self.bits_per_token < 1000 else math.inf

    def to_json(self) -> dict[str, float]:
        return {
            "bits_per_byte": self.bits_per_byte,
            "bits_per_token": self.bits_per_token,
            "perplexity": self.perplexity,
            "tokens": self.tokens,
            "bytes": self.bytes,
        }


@torch.no_grad()
def measure(
    model: Language,
    stream: Stream,
    steps: int,
    *,
    memory: int | None = None,
    farthest: int | None = None,
    blocks: int | None = None,
    half: bool = False,
    on_block: Callable[[int, Measured], None] | None = None,
) -> Measured:
    """One pass over a stream, or its first ``blocks``; ``memory`` positions are looked back at (None: as many as the
    model says, 4 times those of training where nothing else was said), and distances beyond ``farthest`` count as that
    one (None: as they are). ``half`` computes in bfloat16.

    With one stream and a memory as long as the text this is one long pass over the whole text. Every further stream
    begins without a memory, which costs a little; use few for a final number.
    """
    if blocks is not None and blocks < 1:
        raise UserError(f"At least 1 block must be measured, not {blocks}.")
    device = next(model.parameters()).device
    cost = torch.zeros((), dtype=torch.double, device=device)
    tokens = 0
    past: Memory | None = None
    with remembering(model, memory, farthest), torch.autocast(device.type, torch.bfloat16, enabled=half):
        for number in range(stream.blocks if blocks is None else min(stream.blocks, blocks)):
            batch = stream.block(number).to(device)
            context = model.look((batch.inputs, past))
            thought = think(model, None, steps, context=context)
            past = model.remember(thought.state, context)
            cost += bits(thought.logits, batch).sum()
            tokens += int(batch.targets.numel() if batch.mask is None else batch.mask.sum())
            if on_block is not None:
                on_block(number + 1, Measured(float(cost), tokens, tokens * stream.bytes_a_token))
    return Measured(float(cost), tokens, tokens * stream.bytes_a_token)


def measure_weights(loaded: Loaded, split: Split = "test", streams: int = 1, **options: Any) -> Measured:
    """``measure`` with trained weights on a split of their corpus, in blocks as in training."""
    task, model, recipe = loaded.task, loaded.model, loaded.recipe
    if not isinstance(task, Text) or not isinstance(model, Language):
        raise UserError(f"Bits are for language models; these weights are for {task.name}.")
    stream = task.stream(split, streams, max(recipe.difficulty), whole=True)
    return measure(model, stream, recipe.steps, **options)


@contextmanager
def remembering(model: Language, positions: int | None, farthest: int | None = None) -> Iterator[None]:
    """The model in evaluation, with a memory of this many positions and no larger distances; afterwards as it was."""
    if farthest is not None and model.peri:
        raise UserError("MoEUT's rotary positions know no largest distance; leave it out.")
    if farthest is not None and farthest < 0:
        raise UserError(f"The largest distance must be 0 or more, not {farthest}.")
    if positions is not None and positions < 0:
        raise UserError(f"A memory holds 0 positions or more, not {positions}.")
    relative = {part: part.farthest for part in model.modules() if isinstance(part, CausalRelativeAttention)}
    before, training = model.evaluation_memory, model.training
    model.eval()
    if positions is not None:
        model.evaluation_memory = positions
    for part in relative:
        part.farthest = farthest
    try:
        yield
    finally:
        model.evaluation_memory = before
        for part, own in relative.items():
            part.farthest = own
        model.train(training)
