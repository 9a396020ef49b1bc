"""Pages of one HTML file that load nothing: the frame, tables and charts of the reports."""
