"""The one exception that is meant for people: a sentence that says what to do."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

P = ParamSpec("P")
T = TypeVar("T")


class UserError(Exception):
    """Bad input. The command line prints its one sentence and exits with code 2."""


_LISTED = {"task": "tasks", "model": "models", "recipe": "recipes", "study": "studies"}


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest one that does, or where all of them are."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    few = ", ".join(names) if len(names) <= 14 else f"{', '.join(names[:12])} and {len(names) - 12} more"
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of: {few}." if names else "it has none."
    if kind in _LISTED and not near:
        hint = f"longthink list {_LISTED[kind]} shows all, and one of your own needs --with FILE."
    return UserError(f"There is no {kind} named {name!r}; {hint}")


def lacking(why: str, extra: str) -> UserError:
    """The error for a part that is not installed."""
    return UserError(f"{why}; pip install 'longthink[{extra}]', or in a clone pip install -e '.[{extra}]'.")


def at_least(low: int, **options: int) -> None:
    """Complain about an option of the command line that is too small."""
    for name, value in options.items():
        if value < low:
            raise UserError(f"--{name.replace('_', '-')} must be {low} or more, not {value}.")


def check_precision(precision: str) -> None:
    """The one of the command line."""
    if precision not in ("32", "bf16"):
        raise UserError(f"--precision must be 32 or bf16, not {precision!r}.")


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """An option of the command line that is a list."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--{name} must be whole numbers with commas, as in 1,2, not {text!r}.") from None


def numbers(name: str, text: str) -> tuple[float, ...]:
    """The same of numbers that need not be whole."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--{name} must be numbers with commas, as in 0,0.05, not {text!r}.") from None


_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    str: ((str,), "a word"),
    Sequence[int]: ((list, tuple), "a list such as [32,8]"),
}


def _plain(hint: Any) -> tuple[Any, bool]:
    """What X | None asks for, and that None will do."""
    parts = [part for part in get_args(hint) if part is not type(None)]
    return (parts[0], True) if len(parts) == 1 and len(get_args(hint)) == 2 else (hint, False)


def check_options(
    kind: str,
    make: Callable[..., Any],
    given: Mapping[str, Any],
    filled: Collection[str] = (),
    also: Iterable[str] = (),
) -> None:
    """Complain about an option that ``make`` does not have, naming the nearest that it has, or not of that type.

    The caller gives what is ``filled`` by itself, and takes what is ``also`` an option.
    """
    if not isinstance(given, Mapping):
        raise UserError(f"The options of {kind} are given by name, not as {given!r}.")
    every = inspect.signature(make).parameters
    passes_on = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in every.values())
    parameters = {name for name, one in every.items() if one.kind is not inspect.Parameter.VAR_KEYWORD} - {*filled}
    hints = get_type_hints(make.__init__ if isinstance(make, type) else make)  # type: ignore[misc]
    for name, value in given.items():
        if name in filled or (name not in parameters and not passes_on):  # else whoever gets it complains
            raise unknown(f"option of {kind}", name, {*parameters, *also})
        kind_of, optional = _plain(hints.get(name))
        types, words = _PLAIN.get(kind_of, ((), ""))
        if value is None and optional:
            continue
        if types and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
            raise UserError(f"The option {name} of {kind} must be {words}, not {value!r}.")


def describe(kind: type, words: str) -> None:
    """Let options be checked that take parts of this class, which a complaint calls so."""
    _PLAIN[kind] = ((kind,), words)


def check_rates(options: Mapping[str, Any]) -> None:
    """All that models, layers and their parts call dropout is a probability."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            check_rates(value)
        elif key.endswith("dropout") and not (isinstance(value, int | float) and 0 <= value < 1):
            raise UserError(f"{key} must be a probability below 1, such as 0.1, not {value!r}.")


def checked(kind: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For the constructor of a layer, which people call by hand: its arguments are checked as those by name are."""

    def decorate(make: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(make)

        @functools.wraps(make)
        def complain_or_make(*args: P.args, **named: P.kwargs) -> T:
            given = dict(zip(signature.parameters, args, strict=False)) | named
            given.pop("self", None)
            check_options(kind, make, given, filled=("self",))
            check_rates(given)
            try:
                signature.bind(*args, **named)
            except TypeError as error:
                raise UserError(f"{kind[0].upper()}{kind[1:]} is not made like this: {error}.") from None
            return make(*args, **named)

        return complain_or_make

    return decorate
