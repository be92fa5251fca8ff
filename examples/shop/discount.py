"""Percentages of an amount."""


def discounted(cents: int, percent: int) -> int:
    """What is left of `cents` after `percent` off, rounded to the nearest cent, half a cent up."""
    if not 0 <= percent <= 100:
        raise ValueError(f"a discount is between 0 and 100 percent, not {percent}")
    return int(cents * (1 - percent / 100))
