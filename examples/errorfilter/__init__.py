"""Charges that a payment gateway takes, refuses or fails on, and one error filter that decides what becomes of them."""
