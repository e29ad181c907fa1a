"""TreeNodes: drafted nodes of a round that lie side by side in the draft cache, and which of them each one sees."""

import torch


class TreeNodes:
    """Own states of the root and of every fed node, and their ancestry. Lives for one round.

    Node i of a request with s committed positions lies at slot s + i.
    """

    def __init__(self, root_BD: torch.Tensor) -> None:
        self.states_BND = root_BD[:, None]
        self.sees_BNN = torch.zeros(len(root_BD), 0, 0, dtype=torch.bool, device=root_BD.device)
        self.num_levels = 0

    @property
    def num_nodes(self) -> int:
        """Nodes fed so far, without the root."""
        return self.sees_BNN.shape[1]

    def states_of(self, parents_BM: torch.Tensor) -> torch.Tensor:
        """Own states [B, M, D] of parents; -1 is the root."""
        index = (parents_BM + 1)[..., None].expand(-1, -1, self.states_BND.shape[-1])
        return self.states_BND.gather(1, index)

    def ancestry(self, parents_BM: torch.Tensor) -> torch.Tensor:
        """Bool [B, M, N + M]: which nodes M new ones see, their ancestors and themselves."""
        num_reqs, num_new = parents_BM.shape
        own = torch.eye(num_new, dtype=torch.bool, device=parents_BM.device).expand(num_reqs, -1, -1)
        if not self.num_nodes:
            return own
        index = parents_BM.clamp(min=0)[..., None].expand(-1, -1, self.num_nodes)
        above = self.sees_BNN.gather(1, index) & (parents_BM >= 0)[..., None]
        return torch.cat((above, own), dim=2)

    def add(self, states_BMD: torch.Tensor, sees_BMN: torch.Tensor) -> None:
        """Keep the nodes of one level."""
        self.states_BND = torch.cat((self.states_BND, states_BMD), dim=1)
        padded = torch.nn.functional.pad(self.sees_BNN, (0, states_BMD.shape[1]))
        self.sees_BNN = torch.cat((padded, sees_BMN), dim=1)
        self.num_levels += 1


def seen_slots(seq_lens_B: torch.Tensor, sees_BMN: torch.Tensor, num_slots: int) -> torch.Tensor:
    """Bool [B, M, W]: committed slots, and those of the nodes that each new node sees."""
    slots_W = torch.arange(num_slots, device=seq_lens_B.device)
    node_BW = slots_W - seq_lens_B[:, None]
    num_nodes = sees_BMN.shape[2]
    index = node_BW.clamp(0, num_nodes - 1)[:, None].expand(-1, sees_BMN.shape[1], -1)
    is_node = ((node_BW >= 0) & (node_BW < num_nodes))[:, None]
    return (node_BW < 0)[:, None] | (sees_BMN.gather(2, index) & is_node)
