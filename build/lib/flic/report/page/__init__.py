"""The report page: a story of a run or a federation, and one HTML file that tells it."""
