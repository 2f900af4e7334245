"""Whole builds, as a user runs them."""
