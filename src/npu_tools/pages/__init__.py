"""Self-contained HTML pages: the frame, tables and charts of the reports."""
