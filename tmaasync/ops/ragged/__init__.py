"""Lengths of sequences."""
