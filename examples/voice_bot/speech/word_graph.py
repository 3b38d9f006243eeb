"""Minimises a graph of words: the smallest one that accepts the same sentences.

pocketsphinx turns a JSGF grammar into a graph with a state per symbol of every expanded rule, over
a thousand for a page of grammar, and visits every state 100 times a second. Most are copies. The
graph is made deterministic, and states with the same continuations are merged. This leaves about a
tenth of the restaurant grammar's states, and halves the recognition time. Probabilities are
dropped: all continuations are equally likely.
"""

from collections import defaultdict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WordGraph:
    """States joined by words.

    Parameters:
        start: The initial state.
        final: The final state.
        arcs: From state, to state, and the word between them; None is an epsilon transition.
    """

    start: int
    final: int
    arcs: tuple[tuple[int, int, str | None], ...]

    @property
    def words(self) -> frozenset[str]:
        """All words of the graph."""
        return frozenset(word for _, _, word in self.arcs if word is not None)

    @property
    def state_count(self) -> int:
        """The number of states."""
        return len({state for begin, end, _ in self.arcs for state in (begin, end)})


def parse_fsg(text: str) -> WordGraph:
    """Parse a graph in the text format of the Sphinx tools, without probabilities.

    Args:
        text: Lines of `TRANSITION from to probability [word]`, between `START_STATE` and `FSG_END`.
    """
    start = final = 0
    arcs: list[tuple[int, int, str | None]] = []
    for line in text.splitlines():
        match line.split():
            case ["START_STATE", state]:
                start = int(state)
            case ["FINAL_STATE", state]:
                final = int(state)
            case ["TRANSITION", begin, end, _]:
                arcs.append((int(begin), int(end), None))
            case ["TRANSITION", begin, end, _, word]:
                arcs.append((int(begin), int(end), word))
            case _:
                pass
    return WordGraph(start, final, tuple(arcs))


def smallest(graph: WordGraph) -> WordGraph:
    """Return the minimal deterministic graph for the same sentences."""
    return _merged(*_deterministic(graph))


def _deterministic(graph: WordGraph) -> tuple[list[dict[str, int]], set[int]]:
    """Determinise by subset construction: a new state is a set of old ones.

    Returns:
        For every new state its transitions by word (state 0 is the start), and the states at which
        a sentence may end.
    """
    silent: dict[int, set[int]] = defaultdict(set)
    spoken: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for begin, end, word in graph.arcs:
        if word is None:
            silent[begin].add(end)
        else:
            spoken[begin][word].add(end)

    def reached(states: set[int]) -> frozenset[int]:
        found, waiting = set(states), list(states)
        while waiting:
            new = silent[waiting.pop()] - found
            found |= new
            waiting += new
        return frozenset(found)

    number = {reached({graph.start}): 0}
    waiting = list(number)
    ways: list[dict[str, int]] = []
    for group in waiting:  # grows while it is walked
        ends: dict[str, set[int]] = defaultdict(set)
        for state in group:
            for word, targets in spoken[state].items():
                ends[word] |= targets
        way: dict[str, int] = {}
        for word in sorted(ends):
            target = reached(ends[word])
            if target not in number:
                number[target] = len(number)
                waiting.append(target)
            way[word] = number[target]
        ways.append(way)
    return ways, {state for group, state in number.items() if graph.final in group}


def _merged(ways: list[dict[str, int]], endings: set[int]) -> WordGraph:
    """Merge equivalent states by partition refinement."""
    kind = [int(state in endings) for state in range(len(ways))]
    while True:
        seen: dict[tuple[int, tuple[tuple[str, int], ...]], int] = {}
        split = [
            seen.setdefault(
                (kind[state], tuple((word, kind[end]) for word, end in way.items())), len(seen)
            )
            for state, way in enumerate(ways)
        ]
        if len(seen) == len(set(kind)):
            break
        kind = split
    arcs: dict[tuple[int, int, str | None], None] = {}  # a set that keeps its order
    final = len(seen)
    for state, way in enumerate(ways):
        for word, end in way.items():
            arcs[split[state], split[end], word] = None
        if state in endings:
            arcs[split[state], final, None] = None
    return WordGraph(split[0], final, tuple(arcs))
