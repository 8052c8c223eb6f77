"""Fuzzing: settings, files and command lines that are spoilt at random, and what must hold for each.

`mutations` spoils, `targets` know what to feed it to, `oracle` judges, `runner` draws, minimises and reports.
A case is data, so that it can be told in one line, run again, and kept in `kept.jsonl`.
"""
