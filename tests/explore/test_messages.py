"""Whatever arrives, it becomes a message or one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longthink.errors import UserError
from longthink.explore.limits import MOST_CHANGES, MOST_STEPS
from longthink.explore.messages import Change, More, Script, Think, Wanted, read_message

GOOD: dict[str, Any] = {
    "type": "think",
    "id": 7,
    "weights": "mazes",
    "problem": {"size": 9, "seed": 3, "style": "kruskal"},
    "changes": [{"step": 4, "kind": "noise", "seed": 1, "std": 0.5}, {"step": 9, "kind": "zeros"}],
    "from": 2,
    "until": 30,
}
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def test_a_good_one() -> None:
    changes = (Change(4, "noise", 1, 0.5), Change(9, "zeros"))
    script = Script("mazes", Wanted(size=9, seed=3, style="kruskal"), changes)
    assert read_message(json.dumps(GOOD)) == Think(7, script, 2, 30)
    assert read_message('{"type": "more", "id": 7, "until": 60}') == More(7, 60)


@given(st.text())
def test_any_text_is_a_message_or_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"\.$"):
        read_message(text)


@given(st.sampled_from([*GOOD, "other"]), anything)
def test_any_value_in_any_field(name: str, value: Any) -> None:
    check_one({**GOOD, name: value})


@given(st.sampled_from(["size", "seed", "style", "text", "other"]), anything)
def test_any_value_in_a_problem(name: str, value: Any) -> None:
    check_one({**GOOD, "problem": {"seed": 1, name: value}})


@given(st.sampled_from(["step", "kind", "seed", "std", "problem", "other"]), anything)
def test_any_value_in_a_change(name: str, value: Any) -> None:
    check_one({**GOOD, "changes": [{"step": 4, "kind": "noise", name: value}]})


def check_one(message: dict[str, Any]) -> None:
    try:
        found = read_message(json.dumps(message))
    except UserError as error:
        sentence = str(error)
    else:
        sentence = ""
    if sentence:
        assert sentence.endswith((".", "?"))
        assert len(sentence) < 400
        return
    assert isinstance(found, Think)
    assert 0 <= found.until <= MOST_STEPS
    assert all(0 <= change.step <= MOST_STEPS and 0 < change.std <= 100 for change in found.script.changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "not JSON"),
        ('{"type": "more", "id": 1, "until": ' + "9" * 5000 + "}", "not JSON"),
        ('{"type": "more", "id": 1, "until": 99999999999999999999}', "such a large number"),
        ('{"type": "more", "id": 1, "until": NaN}', "not JSON"),
        ('{"type": "more", "id": 1, "until": -1}', "The last step must be from 0 to"),
        (json.dumps({**GOOD, "until": 99_999}), "The last step must be from 0 to 5000, not 99999"),
        (json.dumps({**GOOD, "problem": {"size": 10**12}}), "The size must be from"),
        ('{"type": "more", "id": true, "until": 1}', "whole number"),
        ('{"type": "more", "id": 1, "until": 1.5}', "whole number"),
        (json.dumps({**GOOD, "changes": [{"step": 1, "kind": "noise", "std": -1}]}), "above 0"),
        (json.dumps({**GOOD, "changes": [{"step": 1, "kind": "nois"}]}), "did you mean 'noise'"),
        (json.dumps({**GOOD, "changes": [{"step": 1, "kind": "zeros", "problem": {"text": "1"}}]}), "only then"),
        (json.dumps({**GOOD, "changes": [{"step": 5, "kind": "zeros"}, {"step": 1, "kind": "zeros"}]}), "order"),
        (json.dumps({**GOOD, "changes": [{"step": 1, "kind": "zeros"}] * (MOST_CHANGES + 1)}), "At most 200 changes"),
        (json.dumps({**GOOD, "weights": "x" * 1000}), "300 characters"),
        ("x" * 300_000, "262144 characters"),
    ],
)
def test_what_is_wrong_with_it(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_message(text)


def test_scripts_share_what_came_before_their_first_difference() -> None:
    one = Script("mazes", Wanted(seed=1), (Change(4, "zeros"), Change(9, "noise", 1)))
    assert one.same_until(one) == MOST_STEPS
    assert one.same_until(Script("mazes", Wanted(seed=2))) is None
    assert one.same_until(Script("other", Wanted(seed=1), one.changes)) is None
    assert one.same_until(Script("mazes", Wanted(seed=1), (Change(4, "zeros"), Change(9, "noise", 2)))) == 9
    assert one.same_until(Script("mazes", Wanted(seed=1), (Change(4, "zeros"), Change(7, "zeros")))) == 7
    assert one.same_until(Script("mazes", Wanted(seed=1), (Change(4, "zeros"),))) == 9
    assert one.same_until(Script("mazes", Wanted(seed=1))) == 4
