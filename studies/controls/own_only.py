"""A control of studies/specs/sources.yml: patches are scored by the similarity with the own global alone."""

from studies.controls.patched import score_by, train

score_by(lambda own, others: own)

if __name__ == "__main__":
    train()
