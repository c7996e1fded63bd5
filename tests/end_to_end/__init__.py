"""Tests of the whole way: program, libraries, communicator, daemon, worker."""
