"""The wire, declared once more in Python, and tests that speak it."""
