"""Branches: each turns the backbone's tokens into one descriptor, with a head and losses of its own.

A branch is one file here, or anywhere else; `docs/extending.md` adds one from outside the checkout.
"""

from modeling.branches.base import Branch

__all__ = ["Branch"]
