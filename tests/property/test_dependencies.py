"""The order of dependencies, and the cycles in them, compared with trying every path."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.dependencies import in_order
from fairlane.core.errors import InvalidRequest
from tests.property.histories import BOUNDED

Graph = dict[str, list[str]]


def _graph(drawn: tuple[int, set[tuple[int, int]]]) -> Graph:
    """Up to six names; parents may be names that are not among them."""
    count, edges = drawn
    graph: Graph = {f"t{number}": [] for number in range(count)}
    for child, parent in sorted(edges):
        if child < count:
            graph[f"t{child}"].append(f"t{parent}")
    return graph


edges = st.sets(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=10)
graphs = st.tuples(st.integers(0, 6), edges).map(_graph)


def _orders(graph: Graph) -> list[tuple[str, ...]]:
    """Every order in which all parents stand before their children: by trying all of them."""
    return [order for order in itertools.permutations(graph) if _is_order(order, graph)]


def _is_order(order: tuple[str, ...], graph: Graph) -> bool:
    place = {name: number for number, name in enumerate(order)}
    return all(
        place[parent] < place[name] for name in graph for parent in graph[name] if parent in graph
    )


@BOUNDED
@given(graphs)
def test_an_order_is_found_exactly_when_there_is_one(graph: Graph) -> None:
    possible = _orders(graph)
    try:
        found = in_order(graph)
    except InvalidRequest as error:
        assert not possible
        _assert_is_a_cycle(error.message.rpartition(": ")[2].split(" -> "), graph)
    else:
        assert tuple(found) in possible


def _assert_is_a_cycle(names: list[str], graph: Graph) -> None:
    """Each name is followed by one that waits for it, or each by one that it waits for."""
    assert names[0] == names[-1]
    assert len(set(names)) == len(names) - 1
    pairs = list(itertools.pairwise(names))
    forwards = all(parent in graph[name] for name, parent in pairs)
    backwards = all(name in graph[parent] for name, parent in pairs)
    assert forwards or backwards


@BOUNDED
@given(graphs)
def test_what_stands_in_a_good_order_is_left_alone(graph: Graph) -> None:
    for order in _orders(graph)[:3]:
        arranged = {name: graph[name] for name in order}
        assert in_order(arranged) == list(order)
