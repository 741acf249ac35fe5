"""BNNeck heads: a feature for the triplet loss and retrieval, logits for the identity loss."""

from torch import Tensor, nn

from structures import HeadOutput, Role


class BNNeckHead(nn.Module):
    """BatchNorm with a frozen zero bias, then a classifier without bias; D is `dim`."""

    def __init__(self, name: str, dim: int, num_classes: int, *, role: Role) -> None:
        super().__init__()
        self.name = name
        self.role = role
        self.neck = nn.BatchNorm1d(dim)
        self.neck.bias.requires_grad_(False)
        self.classifier = nn.Linear(dim, num_classes, bias=False)
        nn.init.normal_(self.classifier.weight, std=0.001)

    def forward(self, features: Tensor) -> HeadOutput:
        """(B, D) -> logits (B, number of identities) and the features before and after the neck."""
        neck_features = self.neck(features)
        return HeadOutput(self.name, self.classifier(neck_features), features, neck_features, self.role)
