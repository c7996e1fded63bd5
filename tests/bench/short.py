"""Numbers as tables and pages show them."""


def short(number):
    """A number in four digits."""
    if number is None:
        return "-"
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            return f"{number / (1e3 if suffix == 'k' else limit):.4g}{suffix}"
    return f"{number:.4g}"
