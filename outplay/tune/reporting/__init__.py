"""Reports of studies: a table as text, and a page."""

from outplay.tune.reporting.page import write_page
from outplay.tune.reporting.ranking import ranked, table_lines, write_csv

__all__ = ["ranked", "table_lines", "write_csv", "write_page"]
