"""Token selection that needs only torch: SDTPS for several modalities, and SEPS for images and texts.

`pip install ./modeling/seps` installs this folder alone as `seps_sdtps`; docs/seps.md says how to use it.
`TokenSparse` here is that of SEPS; the one that compares modalities is `sdtps.TokenSparse`.
"""

from .losses import ContrastiveLoss, RatioLoss, SEPSLoss, SEPSLosses
from .network import CrossSparseAggrNet
from .parts import HRPA, DualTokenAggregation, TokenSparse, mask_xattn_one_text
from .sdtps import AggregatedTokens, MultiModalSDTPS, TokenAggregation

# Other names of the published code for the same things.
SDTPS = create_seps_model = CrossSparseAggrNet
HRPA_function = mask_xattn_one_text
