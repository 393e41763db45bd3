"""Contracts for training/inference kernel pairs."""
