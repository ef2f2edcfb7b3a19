"""Launches: their schedule and parameters, one by one or on several emulated devices."""
