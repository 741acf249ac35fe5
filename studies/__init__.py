"""What `tools/ablate.py` is made of; docs/ablation.md explains the words."""
