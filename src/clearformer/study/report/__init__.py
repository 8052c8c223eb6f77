"""The report of a study: figures, tables and verdicts, as one HTML file and as Markdown with figures beside it."""
