"""What a network does inside, one question a module. Each returns a small dataclass with ``to_json`` and draws it.

perturb          recover(model, task, batch, disturbances, steps)    does it come back when its thoughts or its problem
flips            flip_profile(model, task, batch, at, steps)         change while it thinks?
convergence      settle(model, inputs, steps)                        does it come to rest, circle, drift or explode?
                 overthinking(model, task, train_steps, difficulty)  does it lose its answers when it thinks on?
extrapolation    hard_to_easy(model, task, trained, train_steps)     does it solve what is easier than its training?
                 receptive_field(model, task, batch, steps)          how far does a change travel in a step?
sizes            sizes(networks, difficulty, steps)                  how wide must it be, and trained for how long?
attention        attention_maps(model, inputs, steps)                who looks where, and which columns move, when?
experts          expert_use(model, inputs, steps)                    which experts are used, and which together?
active           active_units(model, inputs, steps)                  how many hidden units does a token use?
memory           memory_trace(model, inputs)                         what does a DNC do with its memory?
representations  similarities(model, task, steps)                    do functions mean the same by a symbol?
                 compatibility(model, task, steps)                   whose results does whom understand?

    from longthink.inspect import disturbances, perturb
    found = perturb.recover(model, task, batch, disturbances.table_5_5(), steps=100)
    perturb.draw(found).savefig("recovery.png")
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

__all__ = [
    "active",
    "attention",
    "convergence",
    "disturbances",
    "experts",
    "extrapolation",
    "flips",
    "memory",
    "perturb",
    "representations",
    "sizes",
]


def __getattr__(name: str) -> ModuleType:
    """Modules are imported when they are first used: the command line's help need not wait for torch."""
    if name not in __all__:
        raise AttributeError(f"module 'longthink.inspect' has no attribute {name!r}")
    return import_module(f"longthink.inspect.{name}")
