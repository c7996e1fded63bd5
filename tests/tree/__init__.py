"""Tests of the source tree itself."""
