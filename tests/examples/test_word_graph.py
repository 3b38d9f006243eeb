"""The smallest graph accepts exactly the sentences of the larger one."""

from __future__ import annotations

from collections import defaultdict

from examples.voice_bot.speech.word_graph import WordGraph, parse_fsg, smallest
from hypothesis import given
from hypothesis import strategies as st

STATES = st.integers(0, 6)
WORDS = st.one_of(st.none(), st.sampled_from(["a", "b", "c"]))
GRAPHS = st.builds(
    lambda arcs: WordGraph(0, 6, tuple(arcs)),
    st.lists(st.tuples(STATES, STATES, WORDS), max_size=14),
)


def sentences(graph: WordGraph, words: int) -> set[tuple[str, ...]]:
    """Every sentence of up to so many words."""
    ways: dict[int, list[tuple[int, str | None]]] = defaultdict(list)
    for begin, end, word in graph.arcs:
        ways[begin].append((end, word))
    found: set[tuple[int, tuple[str, ...]]] = {(graph.start, ())}
    waiting = list(found)
    while waiting:
        state, said = waiting.pop()
        for end, word in ways[state]:
            further = (end, said if word is None else (*said, word))
            if len(further[1]) <= words and further not in found:
                found.add(further)
                waiting.append(further)
    return {said for state, said in found if state == graph.final}


@given(GRAPHS)
def test_no_sentence_is_lost_and_none_is_gained(graph: WordGraph):
    """The same sentences, loops and silent arcs included, of up to four words."""
    assert sentences(smallest(graph), 4) == sentences(graph, 4)


def test_copies_are_merged():
    """Two orders that end alike share their ending, and the silent arcs are gone."""
    graph = parse_fsg(
        """FSG_BEGIN <order>
        NUM_STATES 7
        START_STATE 0
        FINAL_STATE 6
        TRANSITION 0 1 0.5 pizza
        TRANSITION 0 2 0.5 soup
        TRANSITION 1 3 1.0
        TRANSITION 2 4 1.0 please
        TRANSITION 3 5 1.0 please
        TRANSITION 4 6 1.0
        TRANSITION 5 6 1.0
        FSG_END"""
    )
    assert graph.words == {"pizza", "soup", "please"}
    merged = smallest(graph)
    assert sentences(merged, 9) == {("pizza", "please"), ("soup", "please")}
    assert len([word for _, _, word in merged.arcs if word is not None]) == 3
