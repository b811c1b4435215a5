"""Run directories → a table of statistics, figures and one self-contained HTML page.

Reads only the files of run directories: nothing here trains, evaluates or knows how a run was made.
"""

from spherefed.report.page import write_page
from spherefed.report.summary import Summary, summarize
from spherefed.report.tables import markdown_table, rich_table

__all__ = ["Summary", "markdown_table", "rich_table", "summarize", "write_page"]
