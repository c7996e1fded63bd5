"""End-to-end tests: program, libraries, communicator, daemon, worker."""
