"""Reports: run directories → a table of statistics, figures and one self-contained HTML page.

This package reads only the files of run directories. It does not train or evaluate.
"""

from spherefed.report.page import write_page
from spherefed.report.summary import Summary, summarize
from spherefed.report.tables import markdown_table, rich_table

__all__ = ["Summary", "markdown_table", "rich_table", "summarize", "write_page"]
