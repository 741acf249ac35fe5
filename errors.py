"""The error that users see, and what its messages need. Every package may import from here."""

from __future__ import annotations


class UserError(ValueError):
    """Something that the user gave cannot be used; the message names it and says what to do.

    The entry points print the message alone; any other exception is a defect and keeps its stack trace.
    """


def on_one_line(text: object) -> str:
    """The text for a message: what would break the line, or cannot be printed, is escaped."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in str(text))


def is_redefined(known: object, new: object) -> bool:
    """Whether both are one function of a module, defined twice, as when a cell of a notebook runs again."""
    places = [(getattr(f, "__module__", None), getattr(f, "__qualname__", None)) for f in (known, new)]
    return places[0] == places[1] and None not in places[0]
