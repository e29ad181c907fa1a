"""DraftTree: which drafted token follows which, for one request; host integers only.

A *node* is a drafted token, numbered as it is packed. The token that a first node follows, the newest known one, is
the *root*; it is the pass's first token of the request and no node. Depth counts from 1, so the node at depth d is for
the position of the root plus d. Knows no tokens and no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from specdec.errors import MetadataError

ROOT = -1


@dataclass(frozen=True)
class DraftTree:
    """Node ``i`` follows node ``parents[i]``, or the root where that is -1; in any order.

    Raises MetadataError for a parent that is no node, and for nodes that follow each other in a circle.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        num_nodes = len(self.parents)
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < num_nodes:
                raise MetadataError(
                    f"the parent of a drafted node must be {ROOT} or 0..{num_nodes - 1}, got {parent} for node {node} "
                    f"of parents {list(self.parents)}"
                )
        if 0 in self.depths:
            raise MetadataError(f"nodes of a drafted tree follow each other in a circle: parents {list(self.parents)}")

    @classmethod
    def chain(cls, num_nodes: int) -> "DraftTree":
        """Each node follows the one before it."""
        return cls(tuple(range(ROOT, num_nodes - 1)))

    @property
    def num_nodes(self) -> int:
        """Nodes, without the root."""
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of every node, from 1."""
        found = [0] * len(self.parents)
        # One more level each time; what no level reaches lies on a circle.
        level, depth = [i for i, parent in enumerate(self.parents) if parent == ROOT], 1
        children = self.children
        while level:
            for node in level:
                found[node] = depth
            level, depth = [child for node in level for child in children.get(node, ())], depth + 1
        return tuple(found)

    @cached_property
    def children(self) -> dict[int, tuple[int, ...]]:
        """Nodes that follow a node (or the root), as they are numbered; nodes without any are left out."""
        found: dict[int, tuple[int, ...]] = {}
        for node, parent in enumerate(self.parents):
            found[parent] = (*found.get(parent, ()), node)
        return found

    @property
    def depth(self) -> int:
        """Nodes of the longest path."""
        return max(self.depths, default=0)

    @property
    def is_chain(self) -> bool:
        """Whether each node follows the one before it."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @property
    def is_ordered(self) -> bool:
        """Whether parents come before their children."""
        return all(parent < node for node, parent in enumerate(self.parents))

    @property
    def order(self) -> tuple[int, ...]:
        """Nodes by depth; siblings keep their order, which rules for sampled siblings depend on."""
        return tuple(sorted(range(len(self.parents)), key=self.depths.__getitem__))

    def ordered(self) -> "DraftTree":
        """The same tree numbered as ``order`` says, so that parents come before their children."""
        number = {old: new for new, old in enumerate(self.order)}
        return DraftTree(tuple(number.get(self.parents[old], ROOT) for old in self.order))

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the first one down to ``node``; empty for the root."""
        found: list[int] = []
        while node != ROOT:
            found.append(node)
            node = self.parents[node]
        return tuple(reversed(found))

    def is_path(self, nodes: Sequence[int]) -> bool:
        """Whether ``nodes`` lead down from the root, each following the one before it."""
        known = all(0 <= node < len(self.parents) for node in nodes)
        return known and all(self.parents[n] == p for p, n in zip((ROOT, *nodes), nodes, strict=False))
