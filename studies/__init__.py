"""`python -m studies`: comparisons of variants over several seeds; docs/results.md."""
