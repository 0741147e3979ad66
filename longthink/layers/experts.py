"""Mixture of experts: the hidden units fall into groups, and each token uses the groups chosen for it (Eq. 7.11)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from longthink.errors import UserError, check_options, checked, unknown
from longthink.layers.balance import balances, usage
from longthink.layers.dropout import dropout
from longthink.layers.feedforward import ACTIVATIONS, FeedForward, feedforwards, named, note_active
from longthink.layers.selection import Chosen, Selection, selections
from longthink.ops.cvmm import cvmm, expert_feedforward, sorted_routes
from longthink.think import note, wanted

INITIALISATIONS = ("dense", "standard", "switch")


class Experts(FeedForward):
    """y = sum over the chosen experts of s[e] act(x W1[e]) W2[e].

    ``dropout`` is the standard one, on the experts' hidden units; the selection drops whole experts. ``layers`` is the
    number of residual layers of the model. Initialisations: "dense" as the dense layer of the same d_ff, with selector
    rows of equal length (section 7.4); "standard", each expert on its own; "switch", variance 0.1 / fan-in.
    """

    @checked("a layer of experts")
    def __init__(
        self,
        width: int,
        hidden: int,
        selection: Selection,
        balance: str | None = "entropy",
        balance_weight: float = 1e-3,
        activation: str = "relu",
        dropout: float = 0.0,
        bias: bool = False,
        layers: int = 1,
        initialisation: str = "dense",
    ) -> None:
        super().__init__()
        experts, selected = selection.experts, selection.weight.shape[1]
        if selected != width:
            raise UserError(f"The selection has a width of {selected}, and the experts of {width}; make them the same.")
        if hidden < 1 or hidden % experts:
            raise UserError(f"The {hidden} hidden units must fall into {experts} experts of the same size.")
        if activation not in ACTIVATIONS:
            raise unknown("activation", activation, ACTIVATIONS)
        if initialisation not in INITIALISATIONS:
            raise unknown("initialisation of experts", initialisation, INITIALISATIONS)
        if layers < 1:
            raise UserError(f"The number of layers must be 1 or more, not {layers}.")
        if not 0 <= balance_weight < math.inf:
            raise UserError(f"The weight of the balancing loss must be a number from 0 on, not {balance_weight!r}.")
        size = hidden // experts
        self.selection, self.activation, self.dropout = selection, activation, dropout
        self.balance = None if balance is None else balances[balance]
        self.balance_weight = balance_weight
        self.up = nn.Parameter(torch.empty(experts, width, size))
        self.down = nn.Parameter(torch.empty(experts, size, width))
        self.up_bias = nn.Parameter(torch.zeros(experts, size)) if bias else None
        self.down_bias = nn.Parameter(torch.zeros(width)) if bias else None
        variance = 0.1 if initialisation == "switch" else 2 / layers
        std = math.sqrt(variance / width)
        nn.init.normal_(self.up, std=std)
        nn.init.normal_(self.down, std=math.sqrt(variance / (hidden if initialisation == "dense" else size)))
        selection.initialise(std, equal_norms=initialisation == "dense")

    @property
    def units(self) -> int:
        experts, _, size = self.up.shape
        return experts * size

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x, self.selection(x))

    def forward_with_balance(self, x: Tensor, padding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        chosen = self.selection(x, padding)
        if self.balance is None or not self.balance_weight:
            return self.mix(x, chosen), torch.zeros((), device=x.device)
        return self.mix(x, chosen), self.balance_weight * self.balance(chosen)

    def mix(self, x: Tensor, chosen: Chosen) -> Tensor:
        note("experts", chosen.experts)
        note("gates", chosen.gates)
        if wanted("usage"):
            note("usage", usage(chosen))
        tokens, experts, gates = (t.flatten(0, -2) for t in (x, chosen.experts, chosen.gates))
        fused = self.activation == "relu" and not (self.training and self.dropout)
        if fused and not wanted("active"):  # the fused one does not show its hidden units
            y = expert_feedforward(tokens, experts, gates, self.up, self.down, self.up_bias)
        else:
            routes = sorted_routes(tokens, experts, len(self.up))
            u = cvmm(tokens, experts, self.up, routes)
            if self.up_bias is not None:
                u = u + self.up_bias[experts].to(u.dtype)
            u = dropout(ACTIVATIONS[self.activation](u), self.dropout, self.training)
            note_active(u.unflatten(0, x.shape[:-1]).flatten(-2))
            y = cvmm((u * gates[..., None]).to(u.dtype), experts, self.down, routes).sum(1, dtype=u.dtype)
        if self.down_bias is not None:
            y = y + self.down_bias.to(y.dtype)
        return y.view(x.shape)

    def extra_repr(self) -> str:
        experts, width, size = self.up.shape
        sizes = f"width={width}, experts={experts}, size={size}, bias={self.up_bias is not None}"
        inside = f"activation={self.activation}, dropout={self.dropout}"
        return f"{sizes}, {inside}, balance={named(self.balance)}, balance_weight={self.balance_weight}"


@feedforwards.add("experts")
@checked("a mixture of experts")
def mixture(
    width: int,
    hidden: int,
    experts: int = 16,
    k: int = 4,
    selection: str = "sigmoid",
    expert_dropout: float = 0.0,
    selection_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Experts:
    """A mixture by the names of its parts: ``mixture(412, 2048, experts=16, k=4, selection="sigmoid")``.

    All ``hidden`` units are shared out evenly among the ``experts``, and each token uses ``k`` of these. ``selection``
    says how they are chosen: "sigmoid" is sigma-MoE, whose experts do not compete; "softmax", "softmax_renormalised"
    and "softmax_after" compete; "noisy" is Shazeer's, "switch" Switch Transformer's (usually with k=1), "sinkhorn"
    S-BASE's. ``selection_options`` are its own: ``{"capacity": 1.25}`` of "switch", ``{"rounds": 3}`` of "sinkhorn".
    ``expert_dropout`` takes whole experts away while training, for all tokens alike.

    Other options are those of ``Experts``: ``balance`` is what keeps all experts in use, "entropy", "switch",
    "variation" or None, and ``balance_weight`` how much it counts; ``activation``, "relu" or "gelu", ``dropout`` and
    ``bias`` are inside the experts; ``layers``, of the whole model, and ``initialisation`` scale the first weights.

    ``forward_with_balance(x)`` returns the output and what to add to the loss, already weighted, which is negative for
    "entropy": the more evenly experts are used, the lower. Plain ``layer(x)`` leaves the balance out.
    """
    kind, more = selections[selection], selection_options or {}
    check_options(f"the selection {selection!r}", kind, more, filled=("width", "experts", "k", "expert_dropout"))
    own = ("experts", "k", "selection", "expert_dropout", "selection_options")
    check_options("a mixture of experts", Experts, options, filled=("width", "hidden", "selection"), also=own)
    return Experts(width, hidden, kind(width, experts, k, expert_dropout, **more), **options)
