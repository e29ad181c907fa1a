"""Rows of a verify pass with trees as tensors, and the path that matches choices already made; device work only."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from specdec.api import TreeRows


def tree_rows(parents_BK: torch.Tensor, num_drafted_B: torch.Tensor) -> TreeRows:
    """``TreeRows`` of valid trees in any order; parents int64 [B, K], -1 for the root."""
    num_reqs, num_nodes = parents_BK.shape
    device = parents_BK.device
    nodes_K = torch.arange(num_nodes, device=device)
    is_node_BK = nodes_K < num_drafted_B.unsqueeze(1)
    parent_row_BK = torch.where(is_node_BK, parents_BK + 1, 0)
    # Row 0 stands for the root, so it is cut off again.
    is_parent_BKK = F.one_hot(parent_row_BK, num_nodes + 1)[..., 1:]
    on_path_BKK = (is_parent_BKK + torch.eye(num_nodes, dtype=torch.int64, device=device)).float()
    for _ in range(max(num_nodes - 1, 1).bit_length()):
        on_path_BKK = (on_path_BKK @ on_path_BKK).clamp(max=1.0)
    on_path_BNK = F.pad(on_path_BKK > 0, (0, 0, 1, 0))
    same_BKK = (parent_row_BK.unsqueeze(2) == parent_row_BK.unsqueeze(1)) & is_node_BK.unsqueeze(1)
    is_earlier_KK = nodes_K.unsqueeze(0) < nodes_K.unsqueeze(1)
    return TreeRows(
        parent_row_BK=parent_row_BK,
        depth_BN=on_path_BNK.sum(dim=2),
        on_path_BNK=on_path_BNK,
        sibling_BK=(same_BKK & is_earlier_KK).sum(dim=2),
        is_node_BK=is_node_BK,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """The accepted nodes of each request.

    nodes_BK  int64 from the first one on; 0 beyond ``num_B``
    num_B     int64, 0..K
    rows_BN   int64 rows of the pass on the way: row 0, then those of the nodes
    """

    nodes_BK: torch.Tensor
    num_B: torch.Tensor

    @property
    def rows_BN(self) -> torch.Tensor:
        """int64 rows of the pass on the way: row 0, then those of the nodes; row 0 beyond the path."""
        columns_K = torch.arange(self.nodes_BK.shape[1], device=self.num_B.device)
        return F.pad(torch.where(columns_K < self.num_B.unsqueeze(1), self.nodes_BK + 1, 0), (1, 0))

    def gather(self, values_BN: torch.Tensor) -> torch.Tensor:
        """Values [B, N] of the rows on the way."""
        return values_BN.gather(1, self.rows_BN)


def matching_path(tree: TreeRows, tokens_BK: torch.Tensor, choice_BN: torch.Tensor) -> Path:
    """The longest path whose every token is the choice at the row that it follows; the first of several.

    Equal siblings may each have nodes below them: what follows either is the same, so the longer path wins.
    """
    matches_BK = tree.is_node_BK & (tokens_BK == choice_BN.gather(1, tree.parent_row_BK))
    misses_BNK = tree.on_path_BNK[:, 1:] & ~matches_BK.unsqueeze(1)
    depth_BK = torch.where(misses_BNK.any(dim=2) | ~tree.is_node_BK, 0, tree.depth_BN[:, 1:])
    num_nodes = tokens_BK.shape[1]
    first_K = torch.arange(num_nodes, 0, -1, device=tokens_BK.device)
    best_B = (depth_BK * (num_nodes + 1) + first_K).argmax(dim=1)
    return path_to(tree, best_B, depth_BK.gather(1, best_B.unsqueeze(1)).squeeze(1))


def path_to(tree: TreeRows, node_B: torch.Tensor, num_B: torch.Tensor) -> Path:
    """The way down to a node of each request of depth ``num_B``, or to nothing where that is 0."""
    num_nodes = tree.is_node_BK.shape[1]
    row_B11 = (node_B + 1).view(-1, 1, 1).expand(-1, 1, num_nodes)
    is_on_BK = tree.on_path_BNK.gather(1, row_B11).squeeze(1) & (num_B > 0).unsqueeze(1)
    # Nodes that are not on the way go to one more column, which is cut off again.
    column_BK = torch.where(is_on_BK, tree.depth_BN[:, 1:] - 1, num_nodes)
    nodes_BK = torch.zeros(len(node_B), num_nodes + 1, dtype=torch.int64, device=node_B.device)
    ids_BK = torch.arange(num_nodes, device=node_B.device).expand_as(column_BK)
    return Path(nodes_BK=nodes_BK.scatter_(1, column_BK, ids_BK)[:, :num_nodes], num_B=num_B)
