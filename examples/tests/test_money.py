import unittest

from shop.money import format_cents, parse_cents


class MoneyTest(unittest.TestCase):
    def test_amounts_are_read_as_cents(self):
        self.assertEqual(parse_cents("12.34"), 1234)
        self.assertEqual(parse_cents(" 7 "), 700)

    def test_other_text_is_refused(self):
        with self.assertRaises(ValueError):
            parse_cents("12,34")

    def test_cents_are_written_with_two_digits(self):
        self.assertEqual(format_cents(5), "0.05")
        self.assertEqual(format_cents(-1234), "-12.34")
