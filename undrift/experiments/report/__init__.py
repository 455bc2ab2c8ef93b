"""Reports: what runs have shown, as a page, a plot and tables.

Each module imports only those above it:

    load     run directories -> frozen records
    curves   means over seeds, round by round
    costs    what a quality costs, each cost defined once
    stats    final quality, local steps; the summary, one row per method
    format   numbers and lists as people read them
    references   training without a federation beside the methods, and every client's own metrics
    text     sentences; a new one is a function in ANSWER or NOTES
    tables   tables of the page and the terminal, CSV files; a new column is an entry in `list_columns`
    plots    curves.png and the data of the page's plots; a new axis is an entry in AXES, a new plot one in CHARTS
    html     the page: page.html (jinja), page.css, page.js, time.js
    write    summarise, write_report
"""

from undrift.experiments.report.stats import MethodSummary, Summary
from undrift.experiments.report.tables import terminal_table
from undrift.experiments.report.write import Options, summarise, write_files, write_report

__all__ = ["Options", "MethodSummary", "Summary", "summarise", "terminal_table", "write_files", "write_report"]
