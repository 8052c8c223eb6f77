"""Ledgers: one number inside a model as a sum of named parts."""
