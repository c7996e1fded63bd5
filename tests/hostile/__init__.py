"""Attacks of guests, users and device processes on a real daemon and its workers."""
