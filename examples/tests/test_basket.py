import unittest

from shop import Basket, discounted


class BasketTest(unittest.TestCase):
    def test_lines_add_up(self):
        basket = Basket()
        basket.add("tea", 450, 2)
        basket.add("cup", 1295)
        self.assertEqual(basket.subtotal(), 2195)
        self.assertEqual(basket.total(), 2195)

    def test_an_empty_basket_costs_nothing(self):
        self.assertEqual(Basket(discount_percent=50).total(), 0)

    def test_a_discount_is_rounded_half_up(self):
        basket = Basket(discount_percent=10)
        basket.add("lamp", 1995)
        self.assertEqual(basket.total(), 1796)

    def test_a_discount_outside_0_to_100_is_refused(self):
        with self.assertRaises(ValueError):
            discounted(100, 101)
