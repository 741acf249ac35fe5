"""Small commands, started with `python -m tools.<name>`; nothing imports them."""
