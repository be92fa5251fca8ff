"""Prices, discounts and baskets of a small shop."""

from shop.basket import Basket
from shop.discount import discounted
from shop.money import format_cents, parse_cents

__all__ = ["Basket", "discounted", "format_cents", "parse_cents"]
