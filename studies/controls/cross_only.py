"""A control of studies/specs/sources.yml: patches are scored by the globals of the other modalities alone."""

from studies.controls.patched import score_by, train

score_by(lambda own, others: others[0] + others[1])

if __name__ == "__main__":
    train()
