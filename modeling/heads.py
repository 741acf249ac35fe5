"""BNNeck heads: a feature for the triplet loss and retrieval, logits for the identity loss."""

from torch import Tensor, nn

from structures import HeadOutput, Role


class BNNeckHead(nn.Module):
    """BatchNorm, whose bias is zero and frozen unless it is to be trained, then a classifier without bias.

    Args:
        dim: D.
        num_classes: number of training identities.
        train_neck_bias: whether the bias of the BatchNorm learns.
    """

    def __init__(self, dim: int, num_classes: int, *, train_neck_bias: bool = False) -> None:
        super().__init__()
        self.neck = nn.BatchNorm1d(dim)
        self.neck.bias.requires_grad_(train_neck_bias)
        self.classifier = nn.Linear(dim, num_classes, bias=False)
        nn.init.normal_(self.classifier.weight, std=0.001)

    def forward(self, features: Tensor, name: str, role: Role) -> HeadOutput:
        """(B, D) -> logits (B, number of identities) and the features before and after the neck.

        Name and role are those of the branch: several may share a head.
        """
        neck_features = self.neck(features)
        return HeadOutput(name, self.classifier(neck_features), features, neck_features, role)
