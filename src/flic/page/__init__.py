"""The report page: a report of a run or a federation, and one HTML file that shows it."""
