"""Tests of the disk images, which take long."""
