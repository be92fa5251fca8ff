"""A basket: lines of articles, and one discount on the sum."""

from dataclasses import dataclass, field

from shop.discount import discounted


@dataclass
class Basket:
    """Holds lines of (name, unit price in cents, quantity)."""

    discount_percent: int = 0
    lines: list[tuple[str, int, int]] = field(default_factory=list)

    def add(self, name: str, unit_cents: int, quantity: int = 1) -> None:
        """Adds a line; a quantity below one is a ValueError."""
        if quantity < 1:
            raise ValueError(f"quantity must be at least 1, not {quantity}")
        self.lines.append((name, unit_cents, quantity))

    def subtotal(self) -> int:
        """The sum of all lines in cents, before the discount."""
        return sum(unit_cents * quantity for _, unit_cents, quantity in self.lines)

    def total(self) -> int:
        """What the customer pays, in cents."""
        return discounted(self.subtotal(), self.discount_percent)
