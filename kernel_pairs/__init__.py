"""Registered K_train/K_inf pairs, one file an operator."""
