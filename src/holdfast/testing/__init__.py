"""Prove that a workflow survives crashes, in a unit test."""
