"""Words, sentences, questions and stories of bAbI, from files and as people type them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import NamedTuple, TypeAlias

from longthink.errors import UserError

PAD, BLANK = 0, 1
_LEXICON = """
a above afraid after afternoon afterwards and antoine apple are back bathroom bedroom before below bernhard bigger
bill blue bored box brian carrying cat cats chest chocolate chocolates cinema color container daniel did discarded do
does down dropped e east either emily evening fit fits following football fred frog from garden gave gertrude get give
go got grabbed gray green greg hallway handed he how hungry in inside is jason jeff jessica john journeyed julie
julius kitchen left lily lion longer many mary maybe mice milk morning mouse moved n no none north not nothing objects
of office one or pajamas park passed picked pink put received rectangle red rhino right s sandra school she sheep
south sphere square suitcase sumit swan than that the then there they thirsty this three tired to took travelled
triangle two up w was went west what where white who why will winona wolf wolves yann yellow yes yesterday you
"""
WORDS = tuple(_LEXICON.split())
"""All the words of the English files. They are written down so that a token means the same whatever was read."""

_PEOPLE = """
antoine bernhard bill brian daniel emily fred gertrude greg jason jeff jessica john julie julius lily mary sandra sumit
winona yann
"""
NAMES = frozenset(_PEOPLE.split())
TOKENS = ("<pad>", "<blank>", ".", "?", ",", *WORDS)
NUMBER = {word: i for i, word in enumerate(TOKENS)}
QUESTION = NUMBER["?"]
_WAY = tuple(NUMBER[word] for word in ("how", "do", "you", "go"))
UNKNOWN = "?"  # stands for an answer word that the person who typed a question does not know


class Line(NamedTuple):
    """A sentence of a story, or a question with its answer (0 for each word that nobody knows)."""

    words: tuple[int, ...]
    answer: tuple[int, ...] | None = None


Story: TypeAlias = tuple[Line, ...]


def parse_stories(lines: Sequence[str], name: str) -> list[Story]:
    """Stories from lines such as ``3 Where is Mary?<tab>park<tab>1``; a story begins where the count does."""
    stories: list[list[Line]] = []
    known: dict[str, Line] = {}  # most sentences come many times
    count = 0
    for i, line in enumerate(lines):
        where = f"Line {i + 1} of {name}"
        number, _, rest = line.strip().partition(" ")
        if number == "1":
            _check_asked(stories, f"Line {i} of {name}")
            stories.append([])
        elif not stories:
            raise UserError(f"{where} must begin with 1: a story counts its lines.")
        elif number != str(count + 1):
            raise UserError(f"{where} must begin with 1 or with {count + 1}, one more than the line before it.")
        count = int(number)
        if rest not in known:
            known[rest] = _line(rest, where)
        if known[rest].answer is not None and count == 1:
            raise UserError(f"{where} is a question without a story; put some sentences before it.")
        stories[-1].append(known[rest])
    if not stories:
        raise UserError(f"There is no story in {name}.")
    _check_asked(stories, f"Line {len(lines)} of {name}")
    return [tuple(story) for story in stories]


def _check_asked(stories: list[list[Line]], where: str) -> None:
    if stories and stories[-1][-1].answer is None:
        raise UserError(f"{where} ends a story without a question; every story must end with one.")


def _line(text: str, where: str) -> Line:
    sentence, *more = text.split("\t")
    words = _words_of(sentence, where)
    if not words:
        raise UserError(f"{where} is empty; write a sentence after its number.")
    if not more:
        if words[-1] != NUMBER["."] or words.count(NUMBER["."]) > 1 or QUESTION in words or len(words) == 1:
            raise UserError(f"{where} is no sentence that ends with a full stop, nor a question with tab and answer.")
        return Line(words)
    if words[-1] != QUESTION or words.count(QUESTION) > 1 or NUMBER["."] in words or len(words) == 1:
        raise UserError(f"{where} has an answer and must be a question that ends with a question mark.")
    answer = _words_of(more[0].replace(",", " "), where)
    if not answer or min(answer) <= NUMBER[","]:
        raise UserError(f"{where} is a question without an answer; write it after a tab, several words with commas.")
    return Line(words, answer)


def typed_story(text: str) -> Story:
    lines: list[Line] = []
    answered = False  # the last question, by the brackets after it
    pieces = re.findall(r"\[[^\[\]]*\]|[^.?\[]*[.?]|\S[^.?\[]*|\[", text)
    for piece in (piece.strip() for piece in pieces):
        here = f"{piece[:40]!r}"
        if piece.startswith("["):
            if not lines or set(lines[-1].answer or ()) != {PAD} or not piece.endswith("]") or answered:
                raise UserError(f"The brackets {here} do not hold the answer to a question; close them right after it.")
            said = piece[1:-1].replace(",", " ").split()
            answer = [PAD if word == UNKNOWN else _word_number(word.lower(), "The answer") for word in said]
            if not answer or any(BLANK <= word <= NUMBER[","] for word in answer):
                raise UserError(f"There is no answer in {here}; type words with commas, or ? for one that is unknown.")
            lines[-1], answered = Line(lines[-1].words, (*answer,)), True
            continue
        answered = False
        words = _words_of(piece.replace(",", " "), f"The sentence {here}")  # no story of bAbI has a comma
        if not words or words[-1] not in (QUESTION, NUMBER["."]):
            raise UserError(f"{here} does not end; put a full stop after a sentence, a question mark after a question.")
        if len(words) == 1:
            raise UserError("There is a full stop or a question mark without a sentence; remove it or write one.")
        asked = (PAD, PAD) if words[: len(_WAY)] == _WAY else (PAD,)  # the way is always two words
        lines.append(Line(words, asked if words[-1] == QUESTION else None))
    if not lines:
        raise UserError("There is no story; type one, as in Mary went to the park. Where is Mary?")
    if lines[0].answer is not None:
        raise UserError("The first question has no story before it; type some sentences first.")
    if lines[-1].answer is None:
        raise UserError("The story does not end with a question; type one, as in Where is Mary?")
    return tuple(lines)


def _words_of(text: str, where: str) -> tuple[int, ...]:
    words = re.sub(r"([.?,])", r" \1 ", text.lower()).split()
    return tuple(_word_number(word, where) for word in words)


def _word_number(word: str, where: str) -> int:
    number = NUMBER.get(word, PAD)
    if number <= BLANK:
        if not word.isalpha():
            raise UserError(f"{where} has {word[:40]!r} in it; write words, sentences with . or ?, answers in [ ].")
        near = get_close_matches(word, WORDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"bAbI has {len(WORDS)} words, such as mary, went and park."
        raise UserError(f"{where} has the unknown word {word[:40]!r}; {hint}")
    return number


def sentence_text(words: Iterable[int]) -> str:
    named = (TOKENS[word].capitalize() if TOKENS[word] in NAMES else TOKENS[word] for word in words)
    text = re.sub(r" ([.?,])", r"\1", " ".join(named))
    return text[:1].upper() + text[1:]


def listed(words: Iterable[int]) -> str:
    return ", ".join(TOKENS[word] for word in words)


def line_text(line: Line) -> str:
    sentence = sentence_text(line.words)
    if line.answer is None:
        return sentence
    return f"{sentence} [{', '.join(TOKENS[word] if word else UNKNOWN for word in line.answer)}]"
