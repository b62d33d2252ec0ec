"""How many words of the glossary somebody meets who reads what one push, and one pull, executes."""

from __future__ import annotations

import builtins
import inspect
import io
import re
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.house.test_glossary import WORDS
from tests.support.builders import at_ms, insert
from tests.support.gateways import GatewayWorld
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

LIBRARY = ROOT / "layers" / "lakesync" / "python" / "lakesync"
MOST = {"push": 20, "pull": 21}


@pytest.mark.parametrize("request_name", MOST)
def test_few_words_of_the_glossary_are_met_in_what_a_request_executes(request_name: str) -> None:
    world = GatewayWorld()
    world.send(insert("r1", at=at_ms(1), title="Buy milk"))
    cursor = world.page().cursor
    world.time.now_ms += 10_000
    requests: dict[str, Callable[[], object]] = {
        "push": lambda: world.send(insert("r2", at=at_ms(2), title="Buy bread")),
        "pull": lambda: world.page(cursor),
    }

    met = sorted(words_met(executed(requests[request_name])))

    assert met
    assert len(met) <= MOST[request_name], met


def executed(request: Callable[[], object]) -> set[CodeType]:
    """Return the functions of the library that a request executes."""
    codes: set[CodeType] = set()
    sys.setprofile(lambda frame, event, _: codes.add(frame.f_code) if event == "call" else None)
    try:
        request()
    finally:
        sys.setprofile(None)
    return {code for code in codes if Path(code.co_filename).is_relative_to(LIBRARY)}


def words_met(codes: set[CodeType]) -> set[str]:
    """Return the words of the glossary in the names, comments and docstrings of functions."""
    met = set()
    for code in codes:
        text = f" {read_text(code)} "
        for word in sorted(WORDS, key=len, reverse=True):
            if f" {plain(word)} " in text:
                text = text.replace(f" {plain(word)} ", " | ")
                met.add(word)
    return met


def read_text(code: CodeType) -> str:
    lines, _ = inspect.getsourcelines(code)
    return " | ".join(plain(text) for text in read_tokens("if 1:\n" + "".join(lines)))


def read_tokens(source: str) -> Iterator[str]:
    """Yield names, comments and docstrings; not what other strings say to users."""
    for kind, text, *_ in tokenize.generate_tokens(io.StringIO(source).readline):
        is_name = kind == tokenize.NAME and text not in dir(builtins)
        if is_name or kind == tokenize.COMMENT or text.startswith('"""'):
            yield text


def plain(text: str) -> str:
    """Return the words of an identifier or a sentence, in the singular."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text.replace("LakeSync", "")).lower()
    return " ".join(
        re.sub(r"(?<=[a-z]{3}[^s])s$", "", word) for word in re.findall("[a-z]+", words)
    )
