"""Kubernetes on one machine."""
